"""Listings that are lost, written anew from their sources, for any mirror."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Callable, Iterable, Mapping

from trainctl.base.json import canonical
from trainctl.base.listing import ResolvedSource
from trainctl.errors import Interrupted, TrainctlError
from trainctl.weights.mirror.afresh import Origins
from trainctl.weights.mirror.layout import named_in, patterns_in
from trainctl.weights.patterns import select

Write = Callable[[ResolvedSource, Mapping[str, Any]], bool]
"""Writes the listing that a source at a reference's version makes up, if that is the one; whether it is."""


def relisted(
    listing_id: str,
    records: Iterable[Mapping[str, Any]],
    origins: Origins,
    write: Write,
    halt: threading.Event,
) -> str | None:
    """Have the listing there, out of what the sources have whose references name it; None, or why it isn't. Where that isn't it, nothing goes."""
    why = "the next apply writes it anew"
    its = (one for one in records if one.get("listing") == listing_id)
    for record in {_told(one): one for one in its}.values():
        try:
            resolved = origins(record, halt).resolved
        except Interrupted:
            raise
        except TrainctlError as error:
            why = error.summary
            continue
        if write(_wanted(resolved, record), record):
            return None
    return why


def _told(record: Mapping[str, Any]) -> bytes:
    """What of a reference says which files its listing has."""
    return canonical([*named_in(record), record.get("pin"), *patterns_in(record)])


def _wanted(resolved: ResolvedSource, record: Mapping[str, Any]) -> ResolvedSource:
    """What the reference's patterns leave. Those of earlier releases don't tell them, and the id says whether it is the listing all the same."""
    patterns = patterns_in(record)
    if patterns == (None, None):
        return resolved
    return replace(resolved, files=select(resolved.files, *patterns)[0])
