"""``https:`` sources: one file of any web server, known by what its headers say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from trainctl.base.http.urls import host_of, quote_url
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceNotFound,
    SourceUnavailable,
)
from trainctl.model.source_uri import parse_source
from trainctl.plugin_api.sources import ByteRange, Fill, SourceCredential
from trainctl.sources.client import SourceClient, SourceResponse
from trainctl.sources.ranges import range_header, read_from, read_range, total_length
from trainctl.sources.validators import describe_validator, if_range, same_content, validator_of

_DECLARED = "sha256:"


class HttpsSource:
    """Speaks plain HTTP over TLS. ``read_timeout`` is the longest wait for a byte, in seconds."""

    def __init__(self, read_timeout: float = 30.0) -> None:
        self._http = SourceClient(read_timeout)

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """The one file, from its headers. A revision ``sha256:HEX`` is what its content must have, whatever they say."""
        file = (
            self._asked(uri, revision, credential, "HEAD", {})
            or self._asked(uri, revision, credential, "GET", {"Range": "bytes=0-0"})
            or self._asked(uri, revision, credential, "GET", {})
        )
        if file is None:
            raise SourceError(
                f"{uri}: {host_of(urlsplit(uri))} doesn't report the size of the file",
                _DOWNLOAD_ADVICE,
            )
        return ResolvedSource(uri, "", (file,))

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """The URI names it."""
        return None

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """The URL itself, where no token is sent with it."""
        return None if credential else resolved.source

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        """See WeightSource."""
        return credential is not None

    @contextmanager
    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> Iterator[Iterator[bytes]]:
        """The file's bytes; SourceMismatch where the headers are not those that it was resolved by."""
        with self._bytes(resolved.source, file, range_header(offset), credential) as response:
            yield read_from(response, resolved.source, file, offset)

    @contextmanager
    def read_range(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        span: ByteRange,
        credential: SourceCredential | None,
    ) -> Iterator[Fill | None]:
        """See RangeSource."""
        uri = resolved.source
        with self._bytes(uri, file, range_header(*span), credential) as response:
            yield read_range(response, uri, file, span)

    @contextmanager
    def _bytes(
        self,
        uri: str,
        file: SourceFile,
        ranged: Mapping[str, str],
        credential: SourceCredential | None,
    ) -> Iterator[SourceResponse]:
        """What nothing identifies but its size is asked for as a whole."""
        headers = dict(ranged) if file.identified else {}
        if headers and (tag := if_range(file.validator)):
            headers["If-Range"] = tag
        with self._answer(uri, credential, "GET", headers) as response:
            _check_not_encoded(uri, response)
            _check_unchanged(uri, file, response)
            yield response

    def _asked(
        self,
        uri: str,
        revision: str | None,
        credential: SourceCredential | None,
        method: str,
        headers: Mapping[str, str],
    ) -> SourceFile | None:
        """What one request tells; None where another kind of request may tell more."""
        try:
            with self._answer(uri, credential, method, headers) as response:
                return _file_from_headers(uri, revision, response, sure=method == "GET")
        except SourceMismatch:  # no byte 0 in it: the file may be empty
            return None
        except (SourceUnavailable, SourceInterrupted, SourceNotFound):
            raise
        except SourceError:
            if method == "GET":
                raise
            return None  # many servers refuse HEAD, and links that are signed for GET do

    @contextmanager
    def _answer(
        self, uri: str, credential: SourceCredential | None, method: str, headers: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        token = credential.value if credential else None
        sent = {"User-Agent": "trainctl", **headers}
        try:
            with self._http.get(quote_url(uri), uri, sent, token, method) as response:
                yield response
        except (SourceDenied, SourceNotFound) as error:
            error.detail = (
                f"The token was read from {credential.origin}. {error.detail}"
                if credential
                else f"Check the URL. {_DOWNLOAD_ADVICE}"
            )
            raise


_DOWNLOAD_ADVICE = (
    "If it needs a login or a download page, download it yourself and use file:///PATH."
)


def _file_from_headers(
    uri: str, revision: str | None, response: SourceResponse, *, sure: bool
) -> SourceFile | None:
    """The file as the headers tell it; None where they tell no length, or none to be ``sure`` of."""
    size = total_length(response)
    if size is None or (not size and not sure):
        return None
    _check_not_encoded(uri, response)
    name = parse_source(uri).name
    if revision and revision.startswith(_DECLARED):
        return SourceFile(name, size, revision)
    if _is_html(response) and not name.lower().endswith((".html", ".htm", ".xhtml")):
        raise SourceError(
            f"{uri}: {host_of(urlsplit(response.url))} returned a web page",
            f"If you want the page, declare its sha256. {_DOWNLOAD_ADVICE}",
        )
    return SourceFile(name, size, validator_of(response.headers, size))


def _is_html(response: SourceResponse) -> bool:
    kind = (response.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    return kind in ("text/html", "application/xhtml+xml")


def _check_not_encoded(uri: str, response: SourceResponse) -> None:
    """We ask for the bytes as they are. What is packed for the way is not the file, and its length is another."""
    coding = (response.headers.get("Content-Encoding") or "identity").strip().lower()
    if coding != "identity":
        raise SourceError(
            f"{uri}: the server ignores the request not to compress ({coding[:20]!r})",
            "Turn off Content-Encoding for the file, or download it yourself and use file:///PATH.",
        )


def _check_unchanged(uri: str, file: SourceFile, response: SourceResponse) -> None:
    """Content that was declared is checked when it is here; any other must still have the headers it was resolved by."""
    if file.sha256 is not None:
        return
    found = validator_of(response.headers, file.size)
    if same_content(found, file.validator):
        return
    length = total_length(response)
    sizes = f"; {file.size} bytes before, {length} now" if length not in (None, file.size) else ""
    raise SourceMismatch(
        f"{uri} has changed since it was resolved ({describe_validator(file.validator)} before, {describe_validator(found)} now{sizes})",
        "Plan and apply again. If the file has not changed, its servers are inconsistent: declare its sha256.",
    )
