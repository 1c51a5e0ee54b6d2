"""RPC methods on a mirror in a directory (``base.protocol.mirrors``), and sources read by presigned URLs."""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import (  # fmt: skip
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    cast,
)

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.lazy_dataclass import asdict
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import ResolvedSource, SourceFile, file_index
from trainctl.base.network.addresses import ServingAddresses
from trainctl.base.protocol.method import EmptyResponse
from trainctl.base.protocol.mirrors import (  # fmt: skip
    BUFFER_BYTES,
    MirrorGcRequest,
    MirrorGcResponse,
    MirrorIngestRequest,
    MirrorIngestResponse,
    MirrorInventoryResponse,
    MirrorRequest,
    MirrorSizeResponse,
    MirrorSurveyRequest,
    MirrorSurveyResponse,
    MirrorVerifyRequest,
    MirrorVerifyResponse,
    ObjectGetRequest,
    ObjectGetResponse,
    ObjectKeysRequest,
    ObjectListRequest,
    ObjectPutRequest,
    ObjectPutResponse,
    ObjectStatResponse,
    source_from_json,
)
from trainctl.base.protocol.wire import (
    CallbackClient,
    CallerGone,
    Emit,
    PendingRequest,
    decode_rows,
    error_from_json,
    row_blocks,
)
from trainctl.base.retry import RetryPolicy
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
from trainctl.store.gc import GcOptions, gc
from trainctl.store.objects import DirectoryObjects
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore
from trainctl.store.survey import stored_bytes, take_inventory, take_survey
from trainctl.store.verify import verify_store

_EVENT_SECONDS = 0.1
_ROWS_PER_EVENT = 1000


def mirror_ingest(
    request: MirrorIngestRequest, emit: Emit, caller: BinaryIO
) -> MirrorIngestResponse:
    """Copy a source into the mirror, by URLs from the client; stops with the client."""
    resolved = source_from_json(request["source"], next(decode_rows(caller)))
    callbacks = CallbackClient(caller, emit)
    store = MirrorStore(
        open_objects(request), RetryPolicy(notify=lambda text: callbacks.send({"log": text}))
    )
    listing = store.ingest(
        resolved,
        UrlUpstream(resolved, SourceUrlCache(callbacks, resolved.files)),
        Reference(**request["reference"]),
        progress=throttle_progress(callbacks.send),
        cancelled=callbacks.gone,
        waiting=lambda text: callbacks.send({"waiting": text}),
    )
    return {"listing": listing.id}


def mirror_survey(
    request: MirrorSurveyRequest, emit: Emit, caller: BinaryIO
) -> MirrorSurveyResponse:
    """Report which files of sources and which listings are stored."""
    sources = [
        source_from_json(source, rows)
        for source, rows in zip(request["sources"], decode_rows(caller))
    ]
    survey = take_survey(open_objects(request), sources, request["listings"], request["lineage"])
    for block in row_blocks(source.files for source in survey.sources):
        emit(block)
    return {
        "sources": [(source.listing, source.arrived) for source in survey.sources],
        "store": [sorted(survey.listings), survey.free, survey.damaged, survey.unusable],
        "serving": ServingAddresses.here().to_json(),
    }


def mirror_gc(request: MirrorGcRequest, emit: Emit) -> MirrorGcResponse:
    """Delete unreferenced blobs."""
    options = GcOptions(request["dry_run"], request["unused_seconds"])
    report = gc(open_objects(request), options, lambda text: emit({"log": text}))
    return {"report": list(vars(report).values())}


def mirror_verify(request: MirrorVerifyRequest, emit: Emit) -> MirrorVerifyResponse:
    """Hash all blobs; with ``repair``, delete corrupt ones."""
    report = verify_store(
        open_objects(request),
        request["repair"],
        throttle_progress(emit),
        lambda text: emit({"log": text}),
    )
    for block in row_blocks([(list(asdict(finding).values()) for finding in report.findings)]):
        emit(block)
    return {"blobs": report.blobs, "bytes": report.bytes}


def mirror_inventory(request: MirrorRequest, emit: Emit) -> MirrorInventoryResponse:
    """List blobs and references."""
    return cast("MirrorInventoryResponse", vars(take_inventory(open_objects(request))))


def mirror_size(request: MirrorRequest, emit: Emit) -> MirrorSizeResponse:
    """Total size of all blobs."""
    return {"bytes": stored_bytes(open_objects(request))}


def object_get(request: ObjectGetRequest, emit: Emit) -> ObjectGetResponse:
    """Send an object, or a range of it."""
    data = open_objects(request).get(request["key"], request["offset"], request["length"])
    for start in range(0, len(data or b""), BUFFER_BYTES):
        emit({"data": b64encode(memoryview(data or b"")[start : start + BUFFER_BYTES]).decode()})
    return {"exists": data is not None}


def object_put(request: ObjectPutRequest, emit: Emit, caller: BinaryIO) -> ObjectPutResponse:
    """Create or replace an object."""
    objects, key, data = open_objects(request), request["key"], caller.read()
    if request["if_absent"]:
        return {"created": objects.put_if_absent(key, data)}
    objects.put(key, data, durable=request["durable"])
    return {"created": True}


def object_stat(request: ObjectKeysRequest, emit: Emit) -> ObjectStatResponse:
    """Return size and age of objects."""
    objects = open_objects(request)
    return {"stats": [objects.stat(key) for key in request["keys"]]}


def object_list(request: ObjectListRequest, emit: Emit) -> EmptyResponse:
    """Send the stats of all objects below a prefix."""
    stats = open_objects(request).list(request["prefix"], request["after"])
    while rows := list(islice(stats, _ROWS_PER_EVENT)):
        emit({"rows": rows})
    return {}


def object_delete(request: ObjectKeysRequest, emit: Emit) -> EmptyResponse:
    """Delete objects."""
    open_objects(request).delete(request["keys"])
    return {}


def object_sync(request: ObjectKeysRequest, emit: Emit) -> EmptyResponse:
    """Make objects durable."""
    open_objects(request).sync(request["keys"])
    return {}


def open_objects(request: MirrorRequest) -> DirectoryObjects:
    """Open the mirror that a request names."""
    return DirectoryObjects(Path(request["path"]))


def throttle_progress(
    emit: Emit, clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int, int], None]:
    """A ``Progress`` that emits the first and last call, and ten a second."""
    due = clock()

    def progress(done: int, total: int, files: int) -> None:
        nonlocal due
        now = clock()
        if now >= due or done >= total:
            due = now + _EVENT_SECONDS
            emit({"done": done, "total": total, "files": files})

    return progress


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

    @contextmanager
    def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
        url = self._urls.find(file)
        if self._is_own_address(url):
            with self._web.open(self._resolved, file, offset, None) as blocks:
                yield blocks
        else:
            with self._response(file, url, range_header(offset)) as response:
                yield read_from(response, self._label(file), file, offset)

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
        try:
            with client.get(url.url, label, headers, credential) as response:
                if not url.is_relayed:
                    check_not_replaced(response.headers, label, file)
                if has_no_md5_etag(response.headers):
                    self._without_md5.add(file.path)
                yield response
        except SourceDenied as error:
            if url.is_relayed:
                raise
            raise SourceDenied(  # of the presigned URL, not of the credential
                f"{label}: access with the presigned URL denied",
                f"{error.summary}. Presigned URLs expire, and may be limited to a network.",
            ) from None
