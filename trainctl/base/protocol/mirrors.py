"""Verbs on a mirror in a directory of a host: on its objects, and what would take many requests for these."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple, TypedDict

from trainctl.base.protocol.host import Serving
from trainctl.base.protocol.verb import Nothing, Verb

PIECE_BYTES = 3 * 2**20
"""Bytes of an object in one event; base64 needs no padding then."""

Row = Tuple[str, int, float]
"""An ``ObjectStat``."""


class InDirectory(TypedDict):
    """``path``: the absolute path of the root."""

    path: str


class GetRequest(InDirectory):
    """``length`` null: to the end."""

    key: str
    offset: int
    length: Optional[int]


class PutRequest(InDirectory):
    """``if_absent``: don't replace an object."""

    key: str
    durable: bool
    if_absent: bool


class ListRequest(InDirectory):
    """``after``: keys after this one."""

    prefix: str
    after: str


class KeysRequest(InDirectory):
    """Keys below ``path``."""

    keys: List[str]


Exists = TypedDict("Exists", {"exists": bool})
Created = TypedDict("Created", {"created": bool})
"""False: there was an object, and ``if_absent``."""

Stats = TypedDict("Stats", {"stats": List[Optional[Row]]})

OBJECT_GET = Verb(
    "object_get",
    GetRequest,
    Exists,
    "Read an object, or some bytes of it. Events: `{data}`, the next piece in base64.",
)
OBJECT_PUT = Verb(
    "object_put", PutRequest, Created, "Create or replace an object; its bytes follow the request."
)
OBJECT_STAT = Verb("object_stat", KeysRequest, Stats, "Report size and age of objects.")
OBJECT_LIST = Verb("object_list", ListRequest, Nothing, "List objects. Events: `{rows}`.")
OBJECT_DELETE = Verb("object_delete", KeysRequest, Nothing, "Delete objects.")
OBJECT_SYNC = Verb("object_sync", KeysRequest, Nothing, "Make objects durable.")


class SourceDocument(TypedDict):
    """A ``ResolvedSource`` without its files. ``known_as``: its pin, if the files are not those upstream announced."""

    source: str
    endpoint: Optional[str]
    revision: str
    known_as: Optional[str]


class ReferenceDocument(TypedDict):
    """A ``Reference``."""

    lineage: str
    address: str
    owner: str
    project: str


class SurveyRequest(InDirectory):
    """``lineage``: whose references are checked, empty: all."""

    sources: List[SourceDocument]
    listings: List[str]
    lineage: str


class Surveyed(TypedDict):
    """``complete``: the listing of each source that is complete; ``arrived``: of each the bytes of files of which the rest is missing.

    ``serving``: how the host serves other nodes.
    """

    complete: List[Optional[str]]
    arrived: List[int]
    listings: List[str]
    free: Optional[int]
    damaged: List[str]
    unusable: str
    serving: Serving


class IngestRequest(InDirectory):
    """The caller answers questions `{want: links, paths}` by `{links: [{url, token, relayed}]}`."""

    source: SourceDocument
    reference: ReferenceDocument


Ingested = TypedDict("Ingested", {"listing": str})


class VerifyRequest(InDirectory):
    """``repair``: delete what is corrupt."""

    repair: bool


class GcRequest(InDirectory):
    """``unused_seconds``: also drop references that were not renewed for so long."""

    dry_run: bool
    unused_seconds: Optional[float]


class Verified(TypedDict):
    """What was hashed."""

    blobs: int
    bytes: int


class Collected(TypedDict):
    """A ``GcReport``; its listings and references as rows."""

    dry_run: bool
    bytes: int
    blobs: int
    listings: List[Any]
    dropped: List[Any]
    kept: List[Any]
    busy: List[Any]


class Inventoried(TypedDict):
    """An ``Inventory``."""

    rows: List[Any]
    unfinished: int
    unreferenced: int
    damaged: List[str]


Size = TypedDict("Size", {"bytes": int})

MIRROR_SURVEY = Verb(
    "mirror_survey",
    SurveyRequest,
    Surveyed,
    "Report what is known of sources, whose files follow as rows. Events: rows `[sha256, size, is here]`.",
)
MIRROR_INGEST = Verb(
    "mirror_ingest",
    IngestRequest,
    Ingested,
    "Copy in a source, whose files follow as rows. Events: `{done, total, files}`, `{waiting}`, `{say}`, `{ask}`.",
)
MIRROR_GC = Verb(
    "mirror_gc", GcRequest, Collected, "Delete what no reference needs. Events: `{say}`."
)
MIRROR_VERIFY = Verb(
    "mirror_verify",
    VerifyRequest,
    Verified,
    "Hash all content. Events: `{done, total, files}`, `{say}` and `{rows}` of findings.",
)
MIRROR_INVENTORY = Verb(
    "mirror_inventory", InDirectory, Inventoried, "Report what is stored, and its references."
)
MIRROR_SIZE = Verb("mirror_size", InDirectory, Size, "Report the bytes of all content.")
