"""Verbs about the cache of weights of a node."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

from trainctl.base.protocol.method import LineageRequest, Method, NodeCacheRequest

MirrorOrigin = Mapping[str, Any]
"""The mirror: ``{type: objects}`` with a ``path`` if the node sees its directory, with ``urls``, ``token``, ``loopback`` and
``fingerprint`` of a server, or with neither if it is in a bucket, of whose objects the caller signs URLs.
"""


class CacheQueryRequest(NodeCacheRequest):
    """``room``: report the room, too."""

    listings: List[str]
    blobs: List[str]
    room: bool


_CacheQueryResponse = TypedDict("_CacheQueryResponse", {"trees": List[str], "blobs": List[str]})


class CacheQueryResponse(_CacheQueryResponse, total=False):
    """``trees`` and ``blobs`` that are here.

    ``room``: bytes that weights may take besides those of live runs; ``most``: with no live run. ``leases``, ``leased``:
    listings and blobs that live runs need.
    """

    room: Optional[int]
    most: Optional[int]
    leases: List[str]
    leased: List[str]
    shared: List[str]


class PeerSpec(TypedDict, total=False):
    """A node that serves what it has. ``holds``: by listing, a bit for each content, in hex."""

    node: str
    urls: List[str]
    token: str
    loopback: str
    fingerprint: str
    holds: Dict[str, str]


class _DeliverRequest(LineageRequest):
    listing: str
    origin: MirrorOrigin


class DeliverRequest(_DeliverRequest, total=False):
    """``listing``: id; its rows follow the request. ``lease``: key of the run. ``source``: for people. ``verify``: check every file. ``node``: which of ``peers`` this is.

    ``patience``: with peers, in seconds.
    """

    owner: str
    lease: str
    source: str
    verify: bool
    node: str
    peers: List[PeerSpec]
    patience: float


class DeliverResponse(TypedDict):
    """Bytes that were here, and that came from the shared cache, from peers and from the mirror."""

    listing: str
    tree: str
    bytes_node: int
    bytes_cluster: int
    bytes_peers: int
    bytes_origin: int
    seconds: float


class _ServeRequest(NodeCacheRequest):
    listings: List[str]
    token: str


class ServeRequest(_ServeRequest, total=False):
    """``listings``: ids; their rows follow the request. ``listen``: an address. ``ports``: ``FIRST-LAST``, empty: any."""

    listen: str
    ports: str


class _ServeMirrorRequest(TypedDict):
    path: str
    token: str


class ServeMirrorRequest(_ServeMirrorRequest, total=False):
    """``path``: directory of the mirror. ``listen`` and ``ports``: see ``ServeRequest``."""

    listen: str
    ports: str


class CacheEvictRequest(NodeCacheRequest):
    """``listings``: ids or beginnings of them; null: all."""

    listings: Optional[List[str]]
    dry_run: bool


class CacheListingRow(TypedDict, total=False):
    """A listing. ``outcome``: evicted, leased or busy; of a verification whole, dropped or wrong."""

    id: str
    source: str
    files: int
    bytes: int
    outcome: str
    last_used: Optional[float]
    leased_by: List[str]
    corrupt_files: List[str]
    detail: str


ServeResponse = TypedDict("ServeResponse", {"sent": int})
CacheListingsResponse = TypedDict(
    "CacheListingsResponse", {"listings": List[CacheListingRow], "bytes": int, "freed": int}
)
"""``bytes``: that were hashed."""

ForgetCacheResponse = TypedDict("ForgetCacheResponse", {"freed": int})
ForgetResponse = TypedDict("ForgetResponse", {"freed": int, "empty": bool})
"""``empty``: nothing of anybody is left."""

DELIVER = Method(
    "deliver",
    DeliverRequest,
    DeliverResponse,
    "Make the tree of a listing present. Events: `{done, came, total, files}`, `{say}`, `{ask}`.",
)
SERVE = Method(
    "serve",
    ServeRequest,
    ServeResponse,
    "Serve listings while the caller is there. Events: `{urls, loopback, why, holds}`, `{sent}`, `{ask}`.",
)
SERVE_MIRROR = Method(
    "serve_mirror",
    ServeMirrorRequest,
    ServeResponse,
    "Serve a mirror while the caller is there. Events: `{urls, loopback, why}`, `{sent}`, `{ask}`.",
)
CACHE_EVICT = Method(
    "cache_evict",
    CacheEvictRequest,
    CacheListingsResponse,
    "Evict listings that no live run leases.",
)
CACHE_VERIFY = Method(
    "cache_verify",
    NodeCacheRequest,
    CacheListingsResponse,
    "Hash every listing; remove those with wrong files. Events: `{done, total}`.",
)
FORGET_CACHE = Method(
    "forget_cache",
    LineageRequest,
    ForgetCacheResponse,
    "Drop the references of a lineage to weights in one cache.",
)
FORGET = Method(
    "forget", LineageRequest, ForgetResponse, "Drop the references and ended runs of a lineage."
)
