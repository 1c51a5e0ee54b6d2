"""Weights on nodes: delivery, serving, caches."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from trainctl.base.lazy_typed_dict import TypedDict
from trainctl.base.protocol.method import LineageRequest, Method, NodeCacheRequest, NotRequired

MirrorLocation = Mapping[str, Any]
"""The mirror: a ``path`` if the node sees its directory, with ``urls``, ``token``, ``loopback`` and
``fingerprint`` of a server, or with neither for a bucket, whose objects' URLs the client presigns. ``is_cache``: the
directory is another node's cache.
"""


class CacheQueryRequest(NodeCacheRequest):
    """``room``: report disk space, too."""

    listings: List[str]
    blobs: List[str]
    room: bool


class CacheQueryResponse(TypedDict):
    """``trees`` and ``blobs`` that are present.

    ``room``: bytes that weights may take besides those of live runs; ``most``: with no live run. ``leases``, ``leased``:
    listings and blobs that live runs need.
    """

    trees: List[str]
    blobs: List[str]
    room: NotRequired[Optional[int]]
    most: NotRequired[Optional[int]]
    leases: NotRequired[List[str]]
    leased: NotRequired[List[str]]
    shared: NotRequired[List[str]]


class PeerSpec(TypedDict, total=False):
    """A node that serves its blobs. ``holds``: by listing, a bit for each blob, in hex."""

    node: str
    urls: List[str]
    token: str
    loopback: str
    fingerprint: str
    holds: Dict[str, str]


class DeliverRequest(LineageRequest):
    """``listing``: id; its rows follow the request. ``lease``: key of the run. ``source``: shown to people.

    ``verify``: check every file. ``node``: which of ``peers`` this is. ``patience``: timeout of peers, in seconds.
    """

    listing: str
    mirror: MirrorLocation
    owner: NotRequired[str]
    lease: NotRequired[str]
    source: NotRequired[str]
    verify: NotRequired[bool]
    node: NotRequired[str]
    peers: NotRequired[List[PeerSpec]]
    patience: NotRequired[float]


class DeliverResponse(TypedDict):
    """Bytes that were present, and bytes from the shared cache, peers and the mirror."""

    listing: str
    tree: str
    bytes_node: int
    bytes_cluster: int
    bytes_peers: int
    bytes_mirror: int
    seconds: float


class ServeRequest(NodeCacheRequest):
    """``listings``: ids; their rows follow the request. ``listen``: an address. ``ports``: ``FIRST-LAST``, empty: any.

    ``directory``: has the listings' files by path, instead of the cache.
    """

    listings: List[str]
    token: str
    directory: NotRequired[str]
    listen: NotRequired[str]
    ports: NotRequired[str]


class ServeMirrorRequest(TypedDict):
    """``path``: directory of the mirror. ``listen`` and ``ports``: see ``ServeRequest``."""

    path: str
    token: str
    listen: NotRequired[str]
    ports: NotRequired[str]


class CacheEvictRequest(NodeCacheRequest):
    """``listings``: ids or prefixes of ids; null: all."""

    listings: Optional[List[str]]
    dry_run: bool


class CachedListing(TypedDict):
    """A listing in a node's cache; ``outcome``: of its eviction (evicted, leased, busy) or verification (ok, evicted, corrupt).

    ``leased_by``: names of live runs, ``projects``: their projects. ``last_used``: Unix seconds.
    """

    id: str
    source: str
    bytes: int
    last_used: Optional[float]
    files: NotRequired[int]
    leased_by: NotRequired[List[str]]
    projects: NotRequired[List[Optional[str]]]
    outcome: NotRequired[str]
    corrupt_files: NotRequired[List[str]]
    detail: NotRequired[str]


ServeResponse = TypedDict("ServeResponse", {"sent": int})
CacheListingsResponse = TypedDict(
    "CacheListingsResponse", {"listings": List[CachedListing], "bytes": int, "freed": int}
)
"""``bytes``: hashed."""

ForgetCacheResponse = TypedDict("ForgetCacheResponse", {"freed": int})
ForgetResponse = TypedDict("ForgetResponse", {"freed": int, "empty": bool})
"""``empty``: no lineage has anything left on the node."""

DELIVER = Method("deliver", DeliverRequest, DeliverResponse)
"""Provide the tree of a listing. Events: ``{done, received, total, files}``, ``{log}``, ``{request}``."""
SERVE = Method("serve", ServeRequest, ServeResponse)
"""Serve listings while the client is connected. Events: ``{urls, loopback, why, holds}``, ``{sent}``, ``{request}``."""
SERVE_MIRROR = Method("serve_mirror", ServeMirrorRequest, ServeResponse)
"""Serve a mirror while the client is connected. Events: ``{urls, loopback, why}``, ``{sent}``, ``{request}``."""
CACHE_EVICT = Method("cache_evict", CacheEvictRequest, CacheListingsResponse)
"""Evict listings that no live run leases."""
CACHE_VERIFY = Method("cache_verify", NodeCacheRequest, CacheListingsResponse)
"""Hash every listing; remove those with corrupt files. Events: ``{done, total}``."""
FORGET_CACHE = Method("forget_cache", LineageRequest, ForgetCacheResponse)
"""Remove the references of a lineage to weights in one cache."""
FORGET = Method("forget", LineageRequest, ForgetResponse)
"""Remove the references and ended runs of a lineage."""
