"""The verb that says what a mirror has of sources; its request and answer are in ``trainctl.base.protocol.mirrors``."""

from __future__ import annotations

from typing import BinaryIO

from trainctl.base.addresses import Serving
from trainctl.base.protocol.mirrors import Surveyed, SurveyRequest
from trainctl.base.protocol.wire import blocks, received
from trainctl.node.mirror.objects import Emit, objects_of
from trainctl.store import messages
from trainctl.store.survey import survey


def mirror_survey(request: SurveyRequest, emit: Emit, caller: BinaryIO) -> Surveyed:
    """Inspect what is here of sources, and which listings are."""
    sources = [
        messages.source_from_json(source, rows)
        for source, rows in zip(request["sources"], received(caller))
    ]
    found = survey(objects_of(request), sources, request["listings"], request["lineage"])
    for block in blocks(source.files for source in found.sources):
        emit(block)
    return {
        "complete": [source.listing for source in found.sources],
        "arrived": [source.arrived for source in found.sources],
        "listings": sorted(found.listings),
        "free": found.free,
        "damaged": list(found.damaged),
        "unusable": found.unusable,
        "serving": Serving.here().to_json(),
    }
