"""``hf:`` sources: the Hugging Face Hub, or the server in ``HF_ENDPOINT``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.http import UnsafeRedirect
from trainctl.base.http.urls import host_of, resolve_reference
from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import ResolvedSource, SourceFile, sort_files
from trainctl.base.pagination import pages
from trainctl.base.retry import RetryFn, no_retry
from trainctl.errors import SourceDenied, SourceError, SourceNotFound
from trainctl.model.source_uri import SourceUri, parse_source
from trainctl.plugin_api.sources import ByteRange, Fill, SourceCredential
from trainctl.sources.client import (
    SourceClient,
    SourceResponse,
    at_hub,
    range_header,
    read_from,
    read_range,
)

_DEFAULT_ENDPOINT = "https://huggingface.co"
_MAX_RESPONSE_BYTES = 64 * 2**20
_NEXT = compile_lazily(r'<([^>]*)>\s*;[^,]*\brel="?next"?')
_NO_FILE_NAMES = "?expand=sha&expand=gated"
"""Keeps the list of files out of the response, on servers that support it."""
_WITH_FILES = "?blobs=true"
"""Adds names, sizes and digests of all files to the response."""
_MAX_LISTED = 1000
"""The Hub may leave files out of longer responses: `snapshot_download` trusts no longer ones either."""
_OVERLOADED = (500, 502, 504)
"""Statuses if the list is too much for the server, or a proxy before it; 503 and 429 are for all requests."""
_COMMIT = compile_lazily(r"[0-9a-f]{40,64}")
_MOST_COMMITS = 150


def default_hub_credential() -> SourceCredential | None:
    """Return the token of ``HF_TOKEN`` or ``hf auth login``."""
    named = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    token = named.replace("\r", "").replace("\n", "").strip()
    if os.environ.get("HF_OIDC_RESOURCE") or (not token and os.path.exists(_token_file())):  # noqa: PTH110 - `~` may stay
        from huggingface_hub import get_token  # heavy

        token = get_token() or ""
    return SourceCredential(token, "HF_TOKEN" if named else "hf auth login") if token else None


def _token_file() -> str:
    """Return the path of the token of ``hf auth login``, as ``huggingface_hub.constants`` has it."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    path = os.environ.get("HF_TOKEN_PATH", f"{home}/token")
    return os.path.expandvars(os.path.expanduser(path))  # noqa: PTH111


class HubSource:
    """A source on a Hub. ``read_timeout``: longest wait for a byte, in seconds."""

    def __init__(self, endpoint: str | None = None, read_timeout: float = 30.0) -> None:
        endpoint = endpoint or os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT
        try:
            parts = urlsplit(endpoint)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            bare = not (parts.username or parts.password or parts.query)
        except ValueError:
            is_url = bare = False
        if not (is_url and bare):  # it is displayed, and stored in the mirror
            raise SourceError(
                "HF_ENDPOINT is not the URL of a server",
                "Use a URL like https://huggingface.co, without a user or query, or unset it.",
                code="invalid-hub-response",
            )
        self._endpoint = endpoint.rstrip("/")
        self._http = SourceClient(read_timeout, hub=self._endpoint)
        self._storage_urls: dict[tuple[str, str], str] = {}

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """Return the files at the revision's current commit (``main`` by default)."""
        return self.resolve_with(uri, revision, credential, no_retry)

    def resolve_with(
        self, uri: str, revision: str | None, credential: SourceCredential | None, each: RetryFn
    ) -> ResolvedSource:
        source = parse_source(uri)
        if not source.has_commits:
            return ResolvedSource(uri, "", self._bucket_files(source, credential, each))
        pinned = revision if revision and _COMMIT.fullmatch(revision) else None
        name = source.revision or "main" if pinned or not revision else revision
        repo = self._api(source)
        try:
            info = each(partial(self._info, repo, name, uri, credential, bool(pinned)))
        except SourceNotFound:  # a commit outlives its branch
            if pinned in (None, name):
                raise
            info = each(partial(self._info, repo, str(pinned), uri, credential))
        commit = pinned or info["sha"]
        files = _listed_files(info) if commit == info["sha"] else ()
        if not files:
            tree = f"{repo}/tree/{commit}?recursive=true"
            files = sort_files(self._tree(tree, uri, credential, each))
        resolved = ResolvedSource(uri, commit, files, info["sha"])
        if info.get("gated") and files:
            each(partial(self._check_access, resolved, credential))
        return resolved

    def commits(
        self, resolved: ResolvedSource, since: str, credential: SourceCredential | None
    ) -> list[tuple[str, str]]:
        """Return ids and titles of the commits after ``since``, newest first; SourceError after too many."""
        uri = resolved.source
        first = f"{self._api(parse_source(uri))}/commits/{resolved.revision}"
        commits: list[tuple[str, str]] = []
        for page in _list_pages(uri, lambda url: self._json(url or first, uri, credential)):
            for row in page:
                if row["id"] == since:
                    return commits
                commits.append((str(row["id"]), str(row["title"])))
            if len(commits) >= _MOST_COMMITS:
                break
        raise SourceError(f"{uri}: {since[:12]} is not among the last {len(commits)} commits")

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """Return ``HF_ENDPOINT``, if not the default."""
        return None if self._endpoint == _DEFAULT_ENDPOINT else self._endpoint

    def _info(
        self,
        repo: str,
        revision: str,
        uri: str,
        credential: SourceCredential | None,
        with_files: bool = False,
    ) -> dict[str, Any]:
        """Return the commit, with its files if ``with_files`` and the server can list them at once."""
        url = f"{repo}/revision/{quote(revision, safe='')}"
        query = _WITH_FILES if with_files else _NO_FILE_NAMES
        try:
            info, _ = self._json(f"{url}{query}", uri, credential)
        except SourceError as error:
            is_final = error.retryable or isinstance(error, SourceDenied | SourceNotFound)
            if with_files and (error.bare_status in _OVERLOADED or not is_final):
                return self._info(repo, revision, uri, credential)
            if error.bare_status not in (400, 404):
                raise
            info, _ = self._json(url, uri, credential)  # of a registry that refuses the parameters
        commit = info.get("sha") if isinstance(info, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise self._unexpected(uri, "no commit")
        return dict(info)

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """Return the signed URL of the Hub's storage, for a public file the Hub's own URL."""
        if credential is None:
            return self._content_url(resolved, file, None)
        is_relayed = self.needs_relay(file, credential)
        return None if is_relayed else self._storage_url(resolved, file, credential)

    def _storage_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """Return the URL to which the Hub redirects, None without one; SourceMismatch if a bucket's file changed."""
        url, subject = self._url(resolved, file), f"{resolved.source}: {display_path(file.path)}"
        kind, _, digest = file.validator.partition(":")
        headers, xet = {"User-Agent": "trainctl"}, digest if kind == "xet" else None
        return self._http.redirect_from(url, subject, headers, credential, xet)

    def _content_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str:
        """Return a URL that always has the resolved content."""
        is_mutable = file.validator.startswith("xet:")
        storage = self._storage_url(resolved, file, credential) if is_mutable else None
        return storage or self._url(resolved, file)

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        """Return whether the file is in git, not the Hub's storage, and needs a token."""
        return credential is not None and file.validator.startswith("git:")

    @contextmanager
    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> Iterator[Iterator[bytes]]:
        """Open a file at the resolved commit."""
        subject = f"{resolved.source}: {display_path(file.path)}"
        url, ranged = self._content_url(resolved, file, credential), range_header(offset)
        with self._get(url, subject, ranged, credential) as response:
            yield read_from(response, subject, file, offset)

    @contextmanager
    def read_range(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        span: ByteRange,
        credential: SourceCredential | None,
    ) -> Iterator[Fill | None]:
        """Open a range, at the file's last redirect target, as the Hub counts requests."""
        subject = f"{resolved.source}: {display_path(file.path)}"
        key, headers = (self._url(resolved, file), file.validator), range_header(*span)
        with ExitStack() as stack:
            known = self._storage_urls.get(key)
            try:
                target = known or self._content_url(resolved, file, credential)
                response = stack.enter_context(self._get(target, subject, headers, credential))
            except SourceError as error:
                if known is None or error.retryable:
                    raise
                self._storage_urls.pop(key, None)
                target = self._content_url(resolved, file, credential)
                response = stack.enter_context(self._get(target, subject, headers, credential))
            self._storage_urls[key] = response.url
            yield read_range(response, subject, file, span)

    def _check_access(self, resolved: ResolvedSource, credential: SourceCredential | None) -> None:
        """Request a byte of a gated repository, which lists its files to everybody."""
        file = min(resolved.files, key=lambda file: (not file.size, file.size))
        url = self._url(resolved, file)
        subject = f"{resolved.source}: {display_path(file.path)}"
        ranged = {"Range": "bytes=0-0"} if file.size else {}
        with self._get(url, subject, ranged, credential):
            return

    def _url(self, resolved: ResolvedSource, file: SourceFile) -> str:
        source = parse_source(resolved.source)
        kind = "" if source.hub_type == "models" else f"{source.hub_type}/"
        place = f"{self._endpoint}/{kind}{source.location}/resolve"
        if source.has_commits:
            return f"{place}/{resolved.revision}/{quote(file.path)}"
        parent, _, name = source.path.rpartition("/")
        is_single = len(resolved.files) == 1 and file.path == name
        folder = parent if is_single else source.path.rstrip("/")
        return f"{place}/{quote(f'{folder}/{file.path}'.lstrip('/'))}"

    def _api(self, source: SourceUri) -> str:
        return f"{self._endpoint}/api/{source.hub_type}/{source.location}"

    def _bucket_files(
        self, source: SourceUri, credential: SourceCredential | None, each: RetryFn
    ) -> tuple[SourceFile, ...]:
        """Return all files below the prefix, or the one file of that name."""
        prefix = source.path.rstrip("/")
        start = f"/{quote(prefix, safe='')}" if prefix else ""
        url = f"{self._api(source)}/tree{start}?recursive=true"
        files = tuple(self._tree(url, source.text, credential, each))
        if not prefix:
            return sort_files(files)
        # the Hub compares the prefix as text: logs includes logs-old/
        below = [file for file in files if file.path.startswith(f"{prefix}/")]
        skipped = len(prefix) + 1
        if not below and not source.path.endswith("/"):
            below = [file for file in files if file.path == prefix]
            skipped = len(prefix) - len(source.name)
        return sort_files(replace(file, path=file.path[skipped:]) for file in below)

    def _tree(
        self, url: str, uri: str, credential: SourceCredential | None, each: RetryFn
    ) -> Iterator[SourceFile]:
        def request(next_url: str | None) -> tuple[Any, str | None]:
            return each(partial(self._json, next_url or url, uri, credential))

        for page in _list_pages(uri, request):
            try:
                yield from (_file(entry) for entry in page if entry["type"] == "file")
            except (KeyError, TypeError, ValueError):
                raise self._unexpected(uri, "invalid file list") from None

    def _json(
        self, url: str, uri: str, credential: SourceCredential | None
    ) -> tuple[Any, str | None]:
        with self._get(url, uri, {"Accept": "application/json"}, credential) as response:
            body = response.read(_MAX_RESPONSE_BYTES)
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):  # nested too deeply
            raise self._unexpected(uri, "not JSON") from None
        next_link = _NEXT.search(response.headers.get("Link") or "")
        if not next_link:
            return value, None
        try:
            following = resolve_reference(response.url, next_link[1], "a link")
            return value, at_hub(following, self._endpoint)
        except UnsafeRedirect as error:
            raise SourceError(f"{uri}: {error.reason}", code="unsafe-redirect") from None

    def _get(
        self,
        url: str,
        subject: str,
        headers: Mapping[str, str],
        credential: SourceCredential | None,
    ) -> AbstractContextManager[SourceResponse]:
        is_hub = urlsplit(url)[:2] == urlsplit(self._endpoint)[:2]
        headers = {"User-Agent": "trainctl", **headers}
        return self._http.get(url, subject, headers, credential if is_hub else None)

    def _unexpected(self, uri: str, problem: str) -> SourceError:
        host = host_of(urlsplit(self._endpoint))
        return SourceError(
            f"{uri}: unexpected response from {host} ({problem})",
            "Check that HF_ENDPOINT is the URL of a Hugging Face Hub or a compatible server.",
            code="invalid-hub-response",
        )


def _listed_files(info: Mapping[str, Any]) -> tuple[SourceFile, ...]:
    """Return the files of a response to ``_WITH_FILES``; empty if it has no complete list."""
    rows = info.get("siblings")
    if not isinstance(rows, list) or len(rows) >= _MAX_LISTED:
        return ()
    try:
        return sort_files(map(_listed_file, rows))
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def _listed_file(row: Mapping[str, Any]) -> SourceFile:
    lfs = row.get("lfs")
    large = {"lfs": {"oid": lfs["sha256"], "size": lfs["size"]}} if lfs else {}
    return _file({"path": row["rfilename"], "size": row["size"], "oid": row["blobId"], **large})


def _file(entry: Mapping[str, Any]) -> SourceFile:
    lfs = entry.get("lfs")
    size = parse_size_field(lfs["size"] if lfs else entry["size"])
    kind, digest = ("sha256", lfs["oid"]) if lfs else ("git", entry.get("oid"))
    if digest is None:  # a file of a bucket
        kind, digest = "xet", entry["xetHash"]
    if not _COMMIT.fullmatch(digest):
        raise ValueError(entry)
    return SourceFile(str(entry["path"]), size, f"{kind}:{digest}")


def _list_pages(
    subject: str, request: Callable[[str | None], tuple[Any, str | None]]
) -> Iterator[Any]:
    """Yield ``pages``; SourceError if they repeat."""
    endless = SourceError(
        f"{subject}: the server's file list has no end (repeated or too many pages)",
        "Check for a proxy or cache that drops parts of a request.",
    )
    return pages(request, endless)


_DIGITS = compile_lazily(r"[0-9]{1,19}")
_MAX_SIZE = 2**63 - 1
"""Largest file size, in bytes."""


def parse_size_field(value: object) -> int:
    """Parse a file's size, a number or a string of digits; ValueError if invalid."""
    size = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE:
        raise ValueError("invalid file size")
    return size
