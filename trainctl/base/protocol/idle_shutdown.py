"""Machines that end themselves when no run and no request needs them."""

from __future__ import annotations

from typing import List, Optional, TypedDict

from trainctl.base.protocol.method import Method, RootRequest


class _NoticeSource(TypedDict):
    kind: str


class NoticeSource(_NoticeSource, total=False):
    """Where the platform announces that it takes a machine back. ``kind``: ``imds``. ``url`` absent: of the environment."""

    url: str


class IdleShutdownSettings(TypedDict):
    """``shutdown``: command that ends the machine. ``stop``: command that keeps its disk, for checkpoints not uploaded.

    ``idle_timeout`` in seconds.
    """

    shutdown: List[str]
    stop: List[str]
    idle_timeout: float
    notice: Optional[NoticeSource]


class IdleShutdownRequest(RootRequest):
    """``settings``: those of the provider."""

    settings: IdleShutdownSettings


class MachineNotices(TypedDict):
    """Unix seconds, null: no notice. ``taken_back``: when the platform takes the machine. ``at_risk``: since when it may."""

    taken_back: Optional[float]
    at_risk: Optional[float]


class IdleShutdownReport(MachineNotices):
    """``idle_since`` in Unix seconds, null: a run is live. ``seconds_left`` until the machine ends, null: no watcher runs."""

    idle_since: Optional[float]
    seconds_left: Optional[float]


IDLE_SHUTDOWN = Method(
    "idle_shutdown",
    IdleShutdownRequest,
    IdleShutdownReport,
    "Start or renew the process that ends an idle machine.",
)
