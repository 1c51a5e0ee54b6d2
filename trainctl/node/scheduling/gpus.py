"""The GPUs of a run: which it may use, which it claims, and how its job is shown them."""

from __future__ import annotations

import time
from typing import Dict, List, Mapping, Optional, Sequence

from trainctl.base.failure import Failure
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.scheduling.claims import Claims, holder_pid, is_held
from trainctl.node.system.gpus import AMD, GpuDevice, ListGpusFn, gpu_users, list_gpus

VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The variables that show a job its own GPUs."""

NO_GPUS = {"BT_NUM_GPUS": "0", **dict.fromkeys(VISIBILITY_VARIABLES, "")}
"""What hides every GPU from a program that has claimed none."""

_FOREIGN_SECONDS = 5.0
"""How often it is asked who else computes on GPUs: each question starts a program."""

_MAX_NAMED = 2
"""How many processes are named: a line of ``status`` is short."""


def usable_gpus(declared: Optional[int], reports: ListGpusFn = list_gpus) -> List[GpuDevice]:
    """The GPUs that jobs may claim: the first ``declared`` of those reported, by index, or so many that nothing reports.

    None leaves it to the host. Failure where more are declared than there are.
    """
    if declared == 0:
        return []
    found = sorted(reports())
    if not found:
        return [GpuDevice(number, f"index-{number}") for number in range(declared or 0)]
    if declared is not None and declared > len(found):
        raise Failure(
            "missing", f"{declared} GPUs are declared for this node and it has {len(found)}"
        )
    return found[:declared]


def gpu_variables(claimed: Sequence[GpuDevice]) -> Dict[str, str]:
    """Variables that show a job its own GPUs and no others, by their numbers in the order of the bus."""
    numbers = ",".join(str(gpu.number) for gpu in claimed)
    found = {"BT_NUM_GPUS": str(len(claimed))}
    if claimed and claimed[0].vendor == AMD:
        return {**found, "HIP_VISIBLE_DEVICES": numbers}
    return {**found, "CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class GpuRequest:
    """What a specification wants. Failure if the host has not as many, used or not.

    Who takes all that there are gets none where the host's tools can't say which that is: its job is ``hidden`` those that there may be.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.hidden: Mapping[str, str] = {}
        kind, count = spec["gpus"]["kind"], spec["gpus"]["count"]
        try:
            found = usable_gpus(spec["gpus"]["declared"])
        except Failure:
            if count is not None:
                raise
            found, self.hidden = [], NO_GPUS
        self._present = [one for one in found if one.is_a(kind)]
        self.count = len(self._present) if count is None else count
        if self.count > len(self._present):
            what = f"{self.count} {kind} GPUs" if kind else f"{self.count} GPUs"
            raise Failure("missing", f"{what} are wanted and this node has {len(self._present)}")
        nodes = spec["nodes"]
        where = f" on {nodes[spec['rank']]}" if len(nodes) > 1 else ""
        self.words = f"waits for {self.count} of {len(self._present)} GPUs{where}"
        self.claims = [one.claim for one in self._present]
        self._refused: List[GpuDevice] = []
        self._looked = 0.0
        self._used: Dict[str, str] = {}

    @property
    def unclaimed(self) -> bool:
        """Whether enough of them are unclaimed."""
        return len(self._unclaimed()) >= self.count

    def free(self) -> Dict[str, GpuDevice]:
        """The unclaimed and unused ones by claim, if they are enough; else none."""
        found = self._unclaimed()
        in_vain = found == self._refused and time.monotonic() - self._looked < _FOREIGN_SECONDS
        if len(found) < self.count or in_vain:
            return {}
        self._used = gpu_users(self._present)
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
        pids = [holder_pid(gpu.claim) for gpu in self._present if gpu not in free]
        if len(free) >= self.count:  # otherwise it is unknown which processes compute on them
            pids += [
                int(self._used[gpu.id]) for gpu in free if self._used.get(gpu.id, "").isdigit()
            ]
        names = list(dict.fromkeys(f"PID {pid}" for pid in pids if pid))
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        return (
            f"{self.words}, taken by {', '.join(names[:_MAX_NAMED])}{more}" if names else self.words
        )

    def take(self, claims: Claims) -> List[GpuDevice]:
        """Claim as many as are wanted; none if they can't be had."""
        free = self.free()
        return [free[name] for name in claims.take_some(free, self.count)]

    def _unclaimed(self) -> List[GpuDevice]:
        return [one for one in self._present if not is_held(one.claim)]
