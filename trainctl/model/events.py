"""Progress events of an apply, printed by ``views``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.address import Address


class EventType(StrEnum):
    """Values of ``type`` in ``apply --format json``."""

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
    """One event; ``time`` in Unix seconds, None means now.

    ``data`` of STEP_PROGRESS has ``done`` and ``total`` in bytes and the name of the ``phase``.
    """

    type: EventType
    message: str
    address: Address | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float | None = None


Emit = Callable[[Event], None]
"""A listener for events; must be thread-safe."""
