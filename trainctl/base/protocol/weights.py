"""Verbs about the cache of weights of a node."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

from trainctl.base.protocol.verb import AtCache, OfLineage, Verb

Origin = Mapping[str, Any]
"""The mirror: ``{type: objects}`` with a ``path`` if the node sees its directory, with ``urls``, ``token``, ``loopback`` and
``fingerprint`` of a server, or with neither if it is in a bucket, of whose objects the caller signs URLs.
"""


class CacheQuery(AtCache):
    """``room``: report the room, too."""

    listings: List[str]
    blobs: List[str]
    room: bool


_Cached = TypedDict("_Cached", {"trees": List[str], "blobs": List[str]})


class Cached(_Cached, total=False):
    """``trees`` and ``blobs`` that are here.

    ``room``: bytes that weights may take besides those of live runs; ``most``: with no live run. ``leases``, ``leased``:
    listings and blobs that live runs need.
    """

    room: Optional[int]
    most: Optional[int]
    leases: List[str]
    leased: List[str]
    shared: List[str]


class Peer(TypedDict, total=False):
    """A node that serves what it has. ``holds``: by listing, a bit for each content, in hex."""

    node: str
    urls: List[str]
    token: str
    loopback: str
    fingerprint: str
    holds: Dict[str, str]


class _Deliver(OfLineage):
    listing: str
    origin: Origin


class DeliverRequest(_Deliver, total=False):
    """``listing``: id; its rows follow the request. ``lease``: key of the run. ``source``: for people. ``verify``: check every file. ``node``: which of ``peers`` this is.

    ``patience``: with peers, in seconds.
    """

    owner: str
    lease: str
    source: str
    verify: bool
    node: str
    peers: List[Peer]
    patience: float


class Delivered(TypedDict):
    """Bytes that were here, and that came from the shared cache, from peers and from the mirror."""

    listing: str
    tree: str
    bytes_node: int
    bytes_cluster: int
    bytes_peers: int
    bytes_origin: int
    seconds: float


class _Serve(AtCache):
    listings: List[str]
    token: str


class ServeRequest(_Serve, total=False):
    """``listings``: ids; their rows follow the request. ``listen``: an address. ``ports``: ``FIRST-LAST``, empty: any."""

    listen: str
    ports: str


class _ServeMirror(TypedDict):
    path: str
    token: str


class ServeMirrorRequest(_ServeMirror, total=False):
    """``path``: directory of the mirror. ``listen`` and ``ports``: see ``ServeRequest``."""

    listen: str
    ports: str


class EvictRequest(AtCache):
    """``listings``: ids or beginnings of them; null: all."""

    listings: Optional[List[str]]
    dry_run: bool


class CacheRow(TypedDict, total=False):
    """A listing. ``outcome``: evicted, leased or busy; of a verification whole, dropped or wrong."""

    id: str
    source: str
    files: int
    bytes: int
    outcome: str
    last_used: Optional[float]
    leased_by: List[str]
    wrong_files: List[str]
    detail: str


Sent = TypedDict("Sent", {"sent": int})
CacheAnswer = TypedDict("CacheAnswer", {"listings": List[CacheRow], "bytes": int, "freed": int})
"""``bytes``: that were hashed."""

Freed = TypedDict("Freed", {"freed": int})
Forgotten = TypedDict("Forgotten", {"freed": int, "empty": bool})
"""``empty``: nothing of anybody is left."""

DELIVER = Verb(
    "deliver",
    DeliverRequest,
    Delivered,
    "Make the tree of a listing present. Events: `{done, came, total, files}`, `{say}`, `{ask}`.",
)
SERVE = Verb(
    "serve",
    ServeRequest,
    Sent,
    "Serve listings while the caller is there. Events: `{urls, loopback, why, holds}`, `{sent}`, `{ask}`.",
)
SERVE_MIRROR = Verb(
    "serve_mirror",
    ServeMirrorRequest,
    Sent,
    "Serve a mirror while the caller is there. Events: `{urls, loopback, why}`, `{sent}`, `{ask}`.",
)
CACHE_EVICT = Verb(
    "cache_evict", EvictRequest, CacheAnswer, "Evict listings that no live run leases."
)
CACHE_VERIFY = Verb(
    "cache_verify",
    AtCache,
    CacheAnswer,
    "Hash every listing; remove those with wrong files. Events: `{done, total}`.",
)
FORGET_CACHE = Verb(
    "forget_cache", OfLineage, Freed, "Drop the references of a lineage to weights in one cache."
)
FORGET = Verb("forget", OfLineage, Forgotten, "Drop the references and ended runs of a lineage.")
