"""Serve weights to other nodes: this node's cache, or a mirror in a directory."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from secrets import token_urlsafe
from typing import (  # fmt: skip
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from trainctl.base.filesystem.files import list_names, open_file
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import Chunk, ListedFile, Listing
from trainctl.base.network.addresses import (
    ServingAddresses,
    is_private,
    parse_port_range,
    shared_loopback_network,
)
from trainctl.base.network.object_server import (
    ObjectServer,
    ObjectSource,
    OpenObject,
    serve_in_thread,
)
from trainctl.base.protocol.weights import (
    PeerSpec,
    ServeMirrorRequest,
    ServeRequest,
    ServeResponse,
)
from trainctl.base.protocol.wire import CallbackClient, CallerGone, Emit
from trainctl.errors import NodeError
from trainctl.node.cache.holds import reserved_listings
from trainctl.node.cache.listings import ListingTrees, receive_listings
from trainctl.node.system.blob_files import STEP_BYTES, VERIFIED, readable_bytes, stamp
from trainctl.node.system.layout import Layout, check_absolute, layout_of
from trainctl.node.transfer.fetch_pool import to_hex, unit_lengths
from trainctl.store.mirror_objects import MirrorObjectSource

if TYPE_CHECKING:
    import ssl  # slow to import, and few servers use TLS

_BLOB = compile_lazily(r"blobs/sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_FRESH_SECONDS = 0.5
_REPORT_SECONDS = 1.0
_MIN_TOKEN = 16


def serve(request: ServeRequest, emit: Emit, caller: BinaryIO) -> ServeResponse:
    """Serve listings from this node's cache or a directory; the first event has what the cache ``holds``."""
    layout = layout_of(request)
    listings = receive_listings(request["listings"], caller)
    holds = {listing.id: _holdings(layout, listing) for listing in listings}
    objects = CacheObjectSource(layout, listings, request.get("directory"))
    return _serve(objects, request, emit, caller, {"holds": holds})


def serve_mirror(request: ServeMirrorRequest, emit: Emit, caller: BinaryIO) -> ServeResponse:
    """Serve the blobs of a mirror in a directory."""
    return _serve(
        MirrorObjectSource(check_absolute(request["path"], "mirror")), request, emit, caller, {}
    )


@contextmanager
def peer_server(layout: Layout, listings: Sequence[Listing]) -> Iterator[Optional[PeerSpec]]:
    """Serve listings from this cache on private addresses; None if the host has none, as there is no TLS."""
    addresses = [address for address in ServingAddresses.here().addresses if is_private(address)]
    if not addresses:
        yield None
        return
    token = token_urlsafe(32)
    holds = {listing.id: _holdings(layout, listing) for listing in listings}
    objects = CacheObjectSource(layout, listings)
    with serve_in_thread(ObjectServer(objects, token, addresses)) as server:
        peer: PeerSpec = {"urls": server.urls, "token": token, "holds": holds}
        peer["loopback"] = shared_loopback_network(addresses)
        yield peer


class CacheObjectSource(ObjectSource):
    """Chunks of listings by digest, also of files being fetched, and small files.

    ``directory``: has the listings' files by path, instead of the cache.
    """

    def __init__(
        self, layout: Layout, listings: Sequence[Listing], directory: Optional[str] = None
    ) -> None:
        self._layout = layout
        files = (file for listing in listings for file in listing.files if directory)
        self._paths = {file.sha256: os.path.realpath(f"{directory}/{file.path}") for file in files}
        self._chunks: Dict[str, Tuple[ListedFile, Chunk]] = {}
        self._listings = {
            listing.id: {file.sha256 for file in listing.unique_files} for listing in listings
        }
        for file in (file for listing in listings for file in listing.unique_files if file.chunks):
            self._chunks.update((chunk.sha256, (file, chunk)) for chunk in file.chunk_ranges)
        self._reserved: Dict[str, int] = {}
        self._checked = -_FRESH_SECONDS

    def open(self, key: str, offset: int, length: Optional[int]) -> Optional[OpenObject]:
        """Serve what the chunk map says.

        Clients verify: it may claim more than the disk has kept.
        """
        match = _BLOB.fullmatch(key)
        if match is None:
            return None
        if match[2] not in self._chunks:
            return self.open_blob(match[2])
        file, chunk = self._chunks[match[2]]
        blob = self.open_blob(file.sha256)
        if blob is not None:
            return blob._replace(start=chunk.offset, end=chunk.offset + chunk.length)
        requested = min(chunk.length - offset, chunk.length if length is None else length)
        marks = self._layout.files.chunk_marks(file.sha256)
        count = readable_bytes(marks, chunk.offset + offset, requested) if requested > 0 else 0
        if count < min(requested, STEP_BYTES) or not count:
            return None
        stream = open_file(self._layout.files.part(file.sha256))
        if stream is None:  # it may just have been renamed
            return self.open(key, offset, length) if self._layout.files.has(file.sha256) else None
        end = offset + count
        return OpenObject(stream, chunk.offset, chunk.offset + end, is_complete=end == chunk.length)

    def open_blob(self, sha256: str) -> Optional[OpenObject]:
        """Open a complete file, renamed or not: files of one chunk are renamed in groups."""
        files = self._layout.files
        stream = open_file(self._paths.get(sha256) or files.blob(sha256))
        if stream is None:
            stream = open_file(files.part(sha256))
            if stream is None:
                stream = open_file(files.blob(sha256))
            elif os.fstat(stream.fileno()).st_mtime != stamp(sha256):
                stream.close()
                return None
        return None if stream is None else OpenObject.from_file(stream)

    def is_incoming(self, sha256: str) -> bool:
        """A delivery reserves a listing before it inspects the cache."""
        now = time.monotonic()
        if now - self._checked > _FRESH_SECONDS:
            self._checked, self._reserved = now, reserved_listings(self._layout)
        if sha256 in self._chunks:
            sha256 = self._chunks[sha256][0].sha256
        return any(sha256 in self._listings.get(listing, ()) for listing in self._reserved)


def _holdings(layout: Layout, listing: Listing) -> str:
    """Which transfer units of a listing are present, in the format of PeerSchedule."""
    if ListingTrees(layout).is_complete(listing.id):
        return to_hex(True for _ in unit_lengths(listing))
    partial = set(list_names(layout.partial))
    present: List[bool] = []
    for file in listing.unique_files:
        is_whole = layout.files.has(file.sha256)
        is_arriving = not is_whole and f"{file.sha256}.map" in partial
        marks = layout.files.chunk_marks(file.sha256) if is_arriving else b""
        present += [
            is_whole or marks[number : number + 1] == bytes([VERIFIED])
            for number, _ in enumerate(file.chunk_ranges)
        ]
    return to_hex(present)


def _serve(
    objects: ObjectSource,
    request: Mapping[str, Any],
    emit: Emit,
    caller: BinaryIO,
    more: Mapping[str, Any],
) -> ServeResponse:
    """Serve until the client closes standard input or is silent for a minute.

    Events: ``{urls, loopback, why}`` with ``more``, then ``{sent}`` each second. TrainctlError if no address is usable.
    """
    token = request["token"]
    if not isinstance(token, str) or len(token) < _MIN_TOKEN:
        raise NodeError(f"token is too short: at least {_MIN_TOKEN} characters required")
    callbacks = CallbackClient(caller, emit)
    address = request.get("listen")
    addresses, reason = ([address], "") if address else ServingAddresses.here()
    if not addresses:
        raise NodeError(reason)
    tls = None if all(map(is_private, addresses)) else _tls(callbacks)
    ports = parse_port_range(request.get("ports"))
    with serve_in_thread(ObjectServer(objects, token, addresses, ports=ports, tls=tls)) as server:
        loopback = shared_loopback_network(addresses)
        callbacks.send({"urls": server.urls, "loopback": loopback, "why": reason, **more})
        while not callbacks.gone.wait(_REPORT_SECONDS):
            callbacks.send({"sent": server.sent})
        return {"sent": server.sent}


def _tls(callbacks: CallbackClient) -> ssl.SSLContext:
    """Create a TLS context with a certificate from the client."""
    from trainctl.base.network.tls import server_context

    try:
        response = callbacks.request({"method": "certificate"})
    except CallerGone:
        raise NodeError("client disconnected") from None
    if "certificate" not in response:
        raise NodeError("client sent no TLS certificate")
    return server_context(response)
