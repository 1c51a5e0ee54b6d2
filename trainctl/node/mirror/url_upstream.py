"""Read sources by presigned URLs that the client provides in batches."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import (  # fmt: skip
    Any,
    ContextManager,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import ResolvedSource, SourceFile, file_index
from trainctl.base.protocol.wire import CallbackClient, CallerGone, PendingRequest, error_from_json
from trainctl.errors import SourceDenied, SourceError, SourceMismatch, TrainctlError, UserInterrupt
from trainctl.plugin_api.sources import ByteRange, Fill, SourceCredential
from trainctl.sources.client import (
    SourceClient,
    SourceResponse,
    check_not_replaced,
    download_headers,
    has_no_md5_etag,
    range_header,
    read_from,
    read_range,
)
from trainctl.sources.https import HttpsSource

_SMALL_BYTES = 2**20
_BATCH_FILES = 64
"""URLs per request: few enough that the last is used before it expires."""
_MAX_CACHED = 1024
"""URLs cached for retries: more than files that are read concurrently."""


class _UrlRequest:
    """Files whose URLs were requested together."""

    def __init__(self, pending: PendingRequest, paths: Sequence[str]) -> None:
        self.pending = pending
        self.paths = paths
        self.is_needed = False


class SourceUrl(NamedTuple):
    """A presigned or relayed URL; ``is_new`` if made for this read."""

    url: str
    token: str
    is_relayed: bool
    is_new: bool
    request: _UrlRequest


class SourceUrlCache:
    """URLs of a source's files, requested in batches. Thread-safe.

    Small files are read in order: their URLs are requested together, and the next batch as soon as a file of the
    current one is read. Each large file has its own request.
    """

    def __init__(self, callbacks: CallbackClient, files: Sequence[SourceFile]) -> None:
        self._callbacks = callbacks
        self._files = files
        self._lock = threading.Lock()
        self._requests: Dict[str, Tuple[_UrlRequest, int]] = {}

    def find(self, file: SourceFile) -> SourceUrl:
        """Return the file's URL; raises the client's error or UserInterrupt."""
        is_small = file.size <= _SMALL_BYTES
        with self._lock:
            is_new = file.path not in self._requests
            if is_new:
                self._send_request(self._next(file.path) if is_small else [file.path])
            request, number = self._requests[file.path]
            if is_small and not request.is_needed:
                request.is_needed = True
                following = self._next(request.paths[-1], skip=1)
                if following:
                    self._send_request(following)
        try:
            link = self._wait(request)[number]
        except TrainctlError:
            for path in request.paths:
                self._forget(path, request)
            raise
        relayed = bool(link.get("relayed"))
        return SourceUrl(link["url"], link.get("token", ""), relayed, is_new, request)

    def forget(self, file: SourceFile, url: SourceUrl) -> None:
        """Request a new URL when the file is read again."""
        self._forget(file.path, url.request)

    def _wait(self, request: _UrlRequest) -> List[Mapping[str, Any]]:
        try:
            response = self._callbacks.wait(request.pending)
        except CallerGone:
            raise UserInterrupt("the mirroring command has ended", "Data copied so far is kept.") from None  # fmt: skip
        if "error" in response:
            raise error_from_json(response["error"])
        links: List[Mapping[str, Any]] = response["links"]
        return links

    def _forget(self, path: str, request: _UrlRequest) -> None:
        with self._lock:
            if path in self._requests and self._requests[path][0] is request:
                del self._requests[path]

    def _next(self, path: str, skip: int = 0) -> List[str]:
        """Small files of the batch that starts at ``path`` whose URLs were not requested."""
        start = file_index(self._files, path) + skip
        return [
            file.path
            for file in self._files[start : start + _BATCH_FILES]
            if file.size <= _SMALL_BYTES and file.path not in self._requests
        ]

    def _send_request(self, paths: Sequence[str]) -> None:
        request = _UrlRequest(self._callbacks.begin({"method": "links", "paths": paths}), paths)
        for number, path in enumerate(paths):
            self._requests[path] = request, number
        while len(self._requests) > _MAX_CACHED:
            del self._requests[next(iter(self._requests))]


class UrlUpstream:
    """The ``Upstream`` of a source that is read by URL."""

    def __init__(self, resolved: ResolvedSource, urls: SourceUrlCache) -> None:
        self._resolved = resolved
        self._urls = urls
        hub = resolved.endpoint if resolved.source.startswith("hf:") else None
        self._client = SourceClient(hub=hub)
        self._relay = SourceClient(direct=True)
        self._web = HttpsSource()
        self._without_md5: Set[str] = set()

    @property
    def source(self) -> str:
        return self._resolved.source

    def checksum(self, file: SourceFile) -> str:
        """Empty if the responses' ETags were not MD5 digests."""
        return "" if file.path in self._without_md5 else file.checksum

    def open(self, file: SourceFile, offset: int) -> ContextManager[Iterator[bytes]]:
        url = self._urls.find(file)
        if self._is_own_address(url):
            return self._web.open(self._resolved, file, offset, None)
        return self._open_rest(file, url, offset)

    @contextmanager
    def read_range(self, file: SourceFile, offset: int, length: int) -> Iterator[Optional[Fill]]:
        """The client relays complete files only."""
        url, span = self._urls.find(file), ByteRange(offset, length)
        if url.is_relayed:
            yield None
        elif self._is_own_address(url):
            with self._web.read_range(self._resolved, file, span, None) as fill:
                yield fill
        else:
            with self._response(file, url, range_header(*span)) as response:
                yield read_range(response, self._label(file), file, span)

    def _is_own_address(self, url: SourceUrl) -> bool:
        return self.source.startswith("https:") and not url.is_relayed

    def _label(self, file: SourceFile) -> str:
        return f"{self.source}: {display_path(file.path)}"

    @contextmanager
    def _open_rest(
        self, file: SourceFile, url: SourceUrl, offset: int
    ) -> Iterator[Iterator[bytes]]:
        with self._response(file, url, range_header(offset)) as response:
            yield read_from(response, self._label(file), file, offset)

    @contextmanager
    def _response(
        self, file: SourceFile, url: SourceUrl, ranged: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        """Follow a URL; one that was made earlier may have expired and is replaced once."""
        with ExitStack() as stack:
            try:
                response = stack.enter_context(self._follow(file, url, ranged))
            except SourceError as error:
                if url.is_new or error.retryable or isinstance(error, SourceMismatch):
                    raise
                self._urls.forget(file, url)
                response = stack.enter_context(self._follow(file, self._urls.find(file), ranged))
            yield response

    @contextmanager
    def _follow(
        self, file: SourceFile, url: SourceUrl, ranged: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        label = self._label(file)
        client = self._relay if url.is_relayed else self._client
        headers = {**download_headers(self.source), **ranged}
        credential = SourceCredential(url.token, "") if url.token else None
        with _url_errors(label, url), client.get(url.url, label, headers, credential) as response:
            if not url.is_relayed:
                check_not_replaced(response.headers, label, file)
            if has_no_md5_etag(response.headers):
                self._without_md5.add(file.path)
            yield response


@contextmanager
def _url_errors(label: str, url: SourceUrl) -> Iterator[None]:
    """Report that a presigned URL was denied, not the credential."""
    try:
        yield
    except SourceDenied as error:
        if url.is_relayed:
            raise
        raise SourceDenied(
            f"{label}: access with the presigned URL denied",
            f"{error.summary}. Presigned URLs expire, and may be limited to a network.",
        ) from None
