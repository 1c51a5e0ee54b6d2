"""``https:`` sources: one file, identified by its response headers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from trainctl.base.http.urls import host_of, quote_url
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import UNKNOWN_SIZE, ResolvedSource, SourceFile
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceNotFound,
    SourceUnavailable,
)
from trainctl.model.source_uri import is_file_name, parse_source
from trainctl.plugin_api.sources import ByteRange, Fill, SourceCredential
from trainctl.sources.client import (
    SourceClient,
    SourceResponse,
    describe_validator,
    if_range,
    range_header,
    read_from,
    read_range,
    same_content,
    total_length,
    validator_of,
)

_DECLARED = "sha256:"
_FILE_NAME = compile_lazily(
    r"""filename(?:\*=[^']*'[^']*'([^;\s]+)|=("[^"]+"|[^";]+))""", re.IGNORECASE
)
_COMPRESSED = {"gzip": (".gz", ".tgz"), "bzip2": (".bz2",), "compress": (".z",), "zstd": (".zst",)}
"""Files that servers label with a ``Content-Encoding``, as Apache's AddEncoding does."""


class HttpsSource:
    """A file of a web server. ``read_timeout``: longest wait for a byte, in seconds."""

    def __init__(self, read_timeout: float = 30.0) -> None:
        self._http = SourceClient(read_timeout)

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """Return the file by its headers, or by a revision ``sha256:HEX``."""
        file = (
            self._request_file(uri, revision, credential, "HEAD", {})
            or self._request_file(uri, revision, credential, "GET", {"Range": "bytes=0-0"})
            or self._request_file(uri, revision, credential, "GET", {}, is_last=True)
        )
        if file is None:
            raise SourceError(
                f"{uri}: {host_of(urlsplit(uri))} doesn't report the size of the file",
                f"Declare its sha256. {_DOWNLOAD_ADVICE}",
            )
        return ResolvedSource(uri, "", (file,))

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """Return None, as the URI names the server."""
        return None

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """Return the URL itself; None if it needs a token."""
        return None if credential else resolved.source

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        return credential is not None

    @contextmanager
    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> Iterator[Iterator[bytes]]:
        """Open the file; SourceMismatch if its headers have changed."""
        with self._get_range(resolved.source, file, range_header(offset), credential) as response:
            yield read_from(response, resolved.source, file, offset)

    @contextmanager
    def read_range(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        span: ByteRange,
        credential: SourceCredential | None,
    ) -> Iterator[Fill | None]:
        uri = resolved.source
        with self._get_range(uri, file, range_header(*span), credential) as response:
            yield read_range(response, uri, file, span)

    @contextmanager
    def _get_range(
        self,
        uri: str,
        file: SourceFile,
        ranged: Mapping[str, str],
        credential: SourceCredential | None,
    ) -> Iterator[SourceResponse]:
        """Request a range; all of the file if it is unidentified."""
        headers = dict(ranged) if file.identified else {}
        if headers and (tag := if_range(file.validator)):
            headers["If-Range"] = tag
        with self._send(uri, credential, "GET", headers) as response:
            if file.sha256 is None:
                _check_not_encoded(uri, file.path, response)
                current, before = validator_of(response.headers, file.size), file.validator
                if not same_content(current, before):
                    size, now = file.size, total_length(response)
                    sizes = f"; {size} bytes before, {now} now" if now not in (None, size) else ""
                    raise SourceMismatch(
                        f"{uri} has changed since it was resolved ({describe_validator(before)} before, {describe_validator(current)} now{sizes})",
                        "Plan and apply again. If the file has not changed, its servers are inconsistent: declare its sha256.",
                    )
            yield response

    def _request_file(
        self,
        uri: str,
        revision: str | None,
        credential: SourceCredential | None,
        method: str,
        headers: Mapping[str, str],
        *,
        is_last: bool = False,
    ) -> SourceFile | None:
        """Return the file by one request; None if another kind of request may return more."""
        try:
            with self._send(uri, credential, method, headers) as response:
                size = total_length(response)
                if size is None and is_last and (revision or "").startswith(_DECLARED):
                    size = UNKNOWN_SIZE
                if size is None or (not size and method != "GET"):
                    return None
                return _file_from_headers(uri, revision, response, size)
        except SourceMismatch:  # there is no byte 0: the file may be empty
            return None
        except (SourceUnavailable, SourceInterrupted, SourceNotFound):
            raise
        except SourceError:
            if method == "GET":
                raise
            return None  # many servers, and URLs presigned for GET, refuse HEAD

    @contextmanager
    def _send(
        self, uri: str, credential: SourceCredential | None, method: str, headers: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        sent = {"User-Agent": "trainctl", **headers}
        try:
            with self._http.get(quote_url(uri), uri, sent, credential, method) as response:
                yield response
        except (SourceDenied, SourceNotFound) as error:
            if credential is None:
                error.detail = f"Check the URL. {_DOWNLOAD_ADVICE}"
            raise


_DOWNLOAD_ADVICE = (
    "If it needs a login or a download page, download it yourself and use file:///PATH."
)


def _file_from_headers(
    uri: str, revision: str | None, response: SourceResponse, size: int
) -> SourceFile:
    found = _FILE_NAME.findall(response.headers.get("Content-Disposition") or "")
    extended, plain = ([name for name in names if name] for names in zip(*found or [("", "")]))
    name = unquote(extended[0]) if extended else "".join(plain[:1]).strip('" ')
    with suppress(UnicodeError):  # http.client decodes headers as Latin-1
        name = name.encode("latin-1").decode()
    name = re.split(r"[/\\]", name)[-1]
    name = name if is_file_name(name) else parse_source(uri).name
    if revision and revision.startswith(_DECLARED):
        return SourceFile(name, size, revision)
    _check_not_encoded(uri, name, response)
    kind = (response.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    is_html = kind in ("text/html", "application/xhtml+xml")
    if is_html and not name.lower().endswith((".html", ".htm", ".xhtml")):
        raise SourceError(
            f"{uri}: {host_of(urlsplit(response.url))} returned a web page",
            f"If you want the page, declare its sha256. {_DOWNLOAD_ADVICE}",
        )
    return SourceFile(name, size, validator_of(response.headers, size))


def _check_not_encoded(uri: str, name: str, response: SourceResponse) -> None:
    """Raise SourceError for a response that was compressed, unlike a file that is itself compressed."""
    coding = (response.headers.get("Content-Encoding") or "identity").strip().lower()
    own = _COMPRESSED.get(coding[2:] if coding.startswith("x-") else coding, ())
    if coding != "identity" and not (
        name.lower().endswith(own) or parse_source(uri).name.lower().endswith(own)
    ):
        raise SourceError(
            f"{uri}: the server ignores the request not to compress ({coding[:20]!r})",
            "Declare its sha256, or download it yourself and use file:///PATH.",
        )
