"""How far a command looks at the world."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LookOptions:
    """How far to look: ``refresh`` at machines and at what is recorded; ``offline`` uses no network, so that machines are this one.

    ``writes_lock`` says that what is resolved now will be in the lock file before anything relies on it, or that it never
    will be; None: if somebody applies it. ``applies``: what is found out is acted on at once, by whoever looks.
    """

    refresh: bool = True
    offline: bool = False
    upgrade: bool = False
    parallelism: int = 10
    writes_lock: bool | None = None
    applies: bool = False
