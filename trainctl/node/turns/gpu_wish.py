"""The GPUs that a run wants of its host, which of them are free now, and claiming them: all it wants or none."""

from __future__ import annotations

import time
from typing import Dict, List, Mapping

from trainctl.base.failure import Failure
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.turns import gpus
from trainctl.node.turns.claims import Claims, holder, is_held
from trainctl.node.turns.gpus import Gpu, users

_FOREIGN_SECONDS = 5.0
"""How often it is asked who else computes on GPUs: each question starts a program."""

_NAMED = 2
"""How many processes are named: a line of ``status`` is short."""


class GpuWish:
    """What a specification wants. Failure if the host has not as many, used or not.

    Who takes all that there are gets none where the host's tools can't say which that is: its job is ``hidden`` those that there may be.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.hidden: Mapping[str, str] = {}
        kind, count = spec["gpus"]["kind"], spec["gpus"]["count"]
        try:
            found = gpus.usable(spec["gpus"]["declared"])
        except Failure:
            if count is not None:
                raise
            found, self.hidden = [], gpus.NO_GPUS
        self._present = [one for one in found if one.is_a(kind)]
        self.count = len(self._present) if count is None else count
        if self.count > len(self._present):
            what = f"{self.count} {kind} GPUs" if kind else f"{self.count} GPUs"
            raise Failure("missing", f"{what} are wanted and this node has {len(self._present)}")
        nodes = spec["nodes"]
        where = f" on {nodes[spec['rank']]}" if len(nodes) > 1 else ""
        self.words = f"waits for {self.count} of {len(self._present)} GPUs{where}"
        self.claims = [one.claim for one in self._present]
        self._refused: List[Gpu] = []
        self._looked = 0.0
        self._used: Dict[str, str] = {}

    @property
    def unclaimed(self) -> bool:
        """Whether nobody holds as many as are wanted, as far as claims tell."""
        return len(self._unclaimed()) >= self.count

    def free(self) -> Dict[str, Gpu]:
        """By claim those that nobody holds and nobody else computes on, if they are enough; else none."""
        found = self._unclaimed()
        in_vain = found == self._refused and time.monotonic() - self._looked < _FOREIGN_SECONDS
        if len(found) < self.count or in_vain:
            return {}
        self._used = users(self._present)
        self._looked = time.monotonic()
        free = {one.claim: one for one in found if one.id not in self._used}
        if len(free) < self.count:
            self._refused = found
            return {}
        return free

    @property
    def why(self) -> str:
        """The words, with the processes that have what is wanted: ``waits for 2 of 4 GPUs, taken by PID 4711``."""
        free = self._unclaimed()
        pids = [holder(gpu.claim) for gpu in self._present if gpu not in free]
        if len(free) >= self.count:  # otherwise nobody asked which processes compute on them
            pids += [
                int(self._used[gpu.id]) for gpu in free if self._used.get(gpu.id, "").isdigit()
            ]
        names = list(dict.fromkeys(f"PID {pid}" for pid in pids if pid))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"{self.words}, taken by {', '.join(names[:_NAMED])}{more}" if names else self.words

    def take(self, claims: Claims) -> List[Gpu]:
        """Claim as many as are wanted; none if they can't be had."""
        free = self.free()
        return [free[name] for name in claims.take_some(free, self.count)]

    def _unclaimed(self) -> List[Gpu]:
        return [one for one in self._present if not is_held(one.claim)]
