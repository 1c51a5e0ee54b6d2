"""What a plan looks at: weights, the mirror, nodes, caches and code. Nothing here appends or writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SurveyOptions:
    """How far to look: ``refresh`` inspects nodes and recorded resources; ``offline`` uses no network.

    ``writes_lock`` is whether the lock file will have what is resolved now before anything relies on it; None if that depends
    on an apply. ``applies`` is whether the result is applied at once.
    """

    refresh: bool = True
    offline: bool = False
    upgrade: bool = False
    parallelism: int = 10
    writes_lock: bool | None = None
    applies: bool = False
