"""Events of the engine. Views print them; nothing below views does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainctl.model.address import Address


class EventType(StrEnum):
    """The ``type`` of one line of ``apply --format json``."""

    STEP_STARTED = "step_started"
    STEP_PROGRESS = "step_progress"
    STEP_DONE = "step_done"
    STEP_FAILED = "step_failed"
    STEP_SKIPPED = "step_skipped"
    RUN_STATUS = "run_status"
    DIAGNOSTIC = "diagnostic"
    LOG = "log"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``data`` of a STEP_PROGRESS: ``done`` and ``total`` in bytes, ``phase`` in words.

    ``time`` is in Unix seconds; None is now.
    """

    type: EventType
    message: str
    address: Address | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float | None = None


Emit = Callable[[Event], None]
"""A listener for events, called from many threads at once."""
