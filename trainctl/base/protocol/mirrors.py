"""Mirrors in a directory of a host: objects, and operations on all of them."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List, Optional, Sequence, Tuple

from trainctl.base.lazy_typed_dict import TypedDict
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.protocol.host import ServingFacts
from trainctl.base.protocol.method import EmptyResponse, Method

BUFFER_BYTES = 3 * 2**20
"""Bytes of an object in one event; base64 needs no padding then."""

ObjectStatRow = Tuple[str, int, float]
"""An ``ObjectStat``."""


class MirrorRequest(TypedDict):
    """``path``: the absolute path of the root."""

    path: str


class ObjectGetRequest(MirrorRequest):
    """``length`` null: to the end."""

    key: str
    offset: int
    length: Optional[int]


class ObjectPutRequest(MirrorRequest):
    """``if_absent``: don't replace an existing object."""

    key: str
    durable: bool
    if_absent: bool


class ObjectListRequest(MirrorRequest):
    """``after``: list only keys greater than this one."""

    prefix: str
    after: str


class ObjectKeysRequest(MirrorRequest):
    """Keys below ``path``."""

    keys: List[str]


ObjectGetResponse = TypedDict("ObjectGetResponse", {"exists": bool})
ObjectPutResponse = TypedDict("ObjectPutResponse", {"created": bool})
"""False: ``if_absent``, and the object exists."""

ObjectStatResponse = TypedDict("ObjectStatResponse", {"stats": List[Optional[ObjectStatRow]]})

OBJECT_GET = Method("object_get", ObjectGetRequest, ObjectGetResponse)
"""Read an object or a range of it. Events: ``{data}``, the next bytes in base64."""
OBJECT_PUT = Method("object_put", ObjectPutRequest, ObjectPutResponse)
"""Create or replace an object; its bytes follow the request."""
OBJECT_STAT = Method("object_stat", ObjectKeysRequest, ObjectStatResponse)
"""Return size and age of objects."""
OBJECT_LIST = Method("object_list", ObjectListRequest, EmptyResponse)
"""List objects. Events: ``{rows}``."""
OBJECT_DELETE = Method("object_delete", ObjectKeysRequest, EmptyResponse)
"""Delete objects."""
OBJECT_SYNC = Method("object_sync", ObjectKeysRequest, EmptyResponse)
"""Make objects durable."""


class SourceDocument(TypedDict):
    """A ``ResolvedSource`` without its files. ``known_as``: its upstream pin, if the files come from a listing."""

    source: str
    endpoint: Optional[str]
    revision: str
    known_as: Optional[str]


def source_to_json(resolved: ResolvedSource) -> SourceDocument:
    """Encode a source without its files, which are sent as rows."""
    return {
        "source": resolved.source,
        "endpoint": resolved.endpoint,
        "revision": resolved.revision,
        "known_as": resolved.known_as,
    }


def file_rows(resolved: ResolvedSource) -> Iterator[Sequence[Any]]:
    """Yield the files of a source as rows."""
    return ((file.path, file.size, file.validator, file.checksum) for file in resolved.files)


def source_from_json(value: SourceDocument, rows: Iterable[Sequence[Any]]) -> ResolvedSource:
    """Decode a source and its ``file_rows``."""
    return ResolvedSource(
        value["source"],
        value["revision"],
        tuple(SourceFile(*row) for row in rows),
        known_as=value["known_as"],
        endpoint=value["endpoint"],
    )


class ReferenceDocument(TypedDict):
    """A ``Reference``."""

    lineage: str
    address: str
    owner: str
    project: str


class MirrorSurveyRequest(MirrorRequest):
    """``lineage``: check its references only; empty: all."""

    sources: List[SourceDocument]
    listings: List[str]
    lineage: str


class MirrorSurveyResponse(TypedDict):
    """A ``StoreSurvey`` as rows; the files of its ``sources`` are sent as events. ``serving``: how the host serves other nodes."""

    sources: List[Any]
    store: List[Any]
    serving: ServingFacts


class MirrorIngestRequest(MirrorRequest):
    """Requests `{method: links, paths}` are answered `{links: [{url, token, relayed}]}`."""

    source: SourceDocument
    reference: ReferenceDocument


MirrorIngestResponse = TypedDict("MirrorIngestResponse", {"listing": str})


class MirrorVerifyRequest(MirrorRequest):
    """``repair``: delete corrupt blobs."""

    repair: bool


class MirrorGcRequest(MirrorRequest):
    """``unused_seconds``: also remove references not renewed for this long."""

    dry_run: bool
    unused_seconds: Optional[float]


class MirrorVerifyResponse(TypedDict):
    """Number and bytes of the blobs hashed."""

    blobs: int
    bytes: int


class MirrorInventoryResponse(TypedDict):
    """An ``Inventory``."""

    rows: List[Any]
    unfinished: int
    unreferenced: int
    damaged: List[str]


MirrorGcResponse = TypedDict("MirrorGcResponse", {"report": List[Any]})
"""The members of a ``GcReport``, with listings and references as rows."""

MirrorSizeResponse = TypedDict("MirrorSizeResponse", {"bytes": int})

MIRROR_SURVEY = Method("mirror_survey", MirrorSurveyRequest, MirrorSurveyResponse)
"""Report what the mirror holds of sources, whose files follow as rows. Events: rows ``[sha256, size, present]``."""
MIRROR_INGEST = Method("mirror_ingest", MirrorIngestRequest, MirrorIngestResponse)
"""Mirror a source, whose files follow as rows. Events: ``{done, total, files}``, ``{waiting}``, ``{log}``, ``{request}``."""
MIRROR_GC = Method("mirror_gc", MirrorGcRequest, MirrorGcResponse)
"""Delete unreferenced blobs. Events: ``{log}``."""
MIRROR_VERIFY = Method("mirror_verify", MirrorVerifyRequest, MirrorVerifyResponse)
"""Hash all blobs. Events: ``{done, total, files}``, ``{log}`` and ``{rows}`` of findings."""
MIRROR_INVENTORY = Method("mirror_inventory", MirrorRequest, MirrorInventoryResponse)
"""List stored listings and their references."""
MIRROR_SIZE = Method("mirror_size", MirrorRequest, MirrorSizeResponse)
"""Report the bytes of all blobs."""
