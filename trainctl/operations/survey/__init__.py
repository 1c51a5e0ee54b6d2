"""Gather the facts of a plan, without writing anything.

`weights` resolves sources, and surveys the mirror and caches; `nodes` inspects nodes, and asks batch
systems and offers; `code` scans the jobs' code.
"""

from __future__ import annotations

from trainctl.base.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SurveyOptions:
    """Scope: ``refresh`` queries nodes and the mirror; ``offline`` nothing remote.

    ``writes_lock``: whether resolved versions are written to the lock file at once; None if that
    depends on an apply. ``applies``: whether the plan is applied at once.
    """

    refresh: bool = True
    offline: bool = False
    upgrade: bool = False
    parallelism: int = 10
    writes_lock: bool | None = None
    applies: bool = False
