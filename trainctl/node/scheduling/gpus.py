"""GPUs of a run: selection, claims, and variables that expose them to the job."""

from __future__ import annotations

import time
from typing import Dict, List, Mapping, Optional, Sequence

from trainctl.base.failure import Failure
from trainctl.base.protocol.runs import RunSpec
from trainctl.node.runs.job import gpus_of
from trainctl.node.scheduling.claims import Claims, holder_pid, is_held
from trainctl.node.system.gpus import AMD, GpuDevice, ListGpusFn, gpu_users, list_gpus

VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that list a job's own GPUs."""

NO_GPUS = {"BT_NUM_GPUS": "0", **dict.fromkeys(VISIBILITY_VARIABLES, "")}
"""Variables that hide all GPUs from a program."""

_FOREIGN_SECONDS = 5.0
"""Interval of checks for other processes that use GPUs: each one starts a program."""

_MAX_NAMED = 2
"""How many processes to name in a status line."""


def usable_gpus(declared: Optional[int], gpu_source: ListGpusFn = list_gpus) -> List[GpuDevice]:
    """GPUs that jobs may claim: the first ``declared``, or all.

    If none is reported, that many by index.

    With None, all reported ones. Failure if more are declared than reported.
    """
    if declared == 0:
        return []
    reported = sorted(gpu_source())
    if not reported:
        return [GpuDevice(number, f"index-{number}") for number in range(declared or 0)]
    if declared is not None and declared > len(reported):
        raise Failure("missing", f"{declared} GPUs declared, but the node has {len(reported)}")
    return reported[:declared]


def gpu_variables(claimed: Sequence[GpuDevice]) -> Dict[str, str]:
    """Variables that expose only the claimed GPUs to a job, by bus order."""
    numbers = ",".join(str(gpu.number) for gpu in claimed)
    variables = {"BT_NUM_GPUS": str(len(claimed))}
    if claimed and claimed[0].vendor == AMD:
        return {**variables, "HIP_VISIBLE_DEVICES": numbers}
    return {**variables, "CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class GpuRequest:
    """GPUs that a specification requires; Failure if the host has too few.

    If all GPUs are requested and the host's tools fail, none is claimed and the variables in ``hidden`` hide them.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.hidden: Mapping[str, str] = {}
        wanted = gpus_of(spec)
        kind, count = wanted["kind"], wanted["count"]
        try:
            usable = usable_gpus(wanted["declared"])
        except Failure:
            if count:
                raise
            usable, self.hidden = [], NO_GPUS
        self._present = [gpu for gpu in usable if gpu.matches_kind(kind)]
        self.count = len(self._present) if count is None else count
        if self.count > len(self._present):
            required = f"{self.count} {kind} GPUs" if kind else f"{self.count} GPUs"
            raise Failure("missing", f"{required} required, but the node has {len(self._present)}")
        nodes = spec["nodes"]
        where = f" on {nodes[spec['rank']]}" if len(nodes) > 1 else ""
        self.description = f"waits for {self.count} of {len(self._present)} GPUs{where}"
        self.claims = [gpu.claim for gpu in self._present]
        self._refused: List[GpuDevice] = []
        self._checked_at = 0.0
        self._used: Dict[str, str] = {}

    @property
    def unclaimed(self) -> bool:
        """Whether enough GPUs are unclaimed."""
        return len(self._unclaimed()) >= self.count

    def free(self) -> Dict[str, GpuDevice]:
        """Unclaimed and unused GPUs by claim; empty if they are not enough."""
        unclaimed = self._unclaimed()
        is_recent = time.monotonic() - self._checked_at < _FOREIGN_SECONDS
        if len(unclaimed) < self.count or (unclaimed == self._refused and is_recent):
            return {}
        self._used = gpu_users(self._present)
        self._checked_at = time.monotonic()
        free = {gpu.claim: gpu for gpu in unclaimed if gpu.id not in self._used}
        if len(free) < self.count:
            self._refused = unclaimed
            return {}
        return free

    @property
    def waiting_reason(self) -> str:
        """Reason to wait: ``waits for 2 of 4 GPUs, taken by PID 4711``."""
        free = self._unclaimed()
        pids = [holder_pid(gpu.claim) for gpu in self._present if gpu not in free]
        if len(free) >= self.count:  # otherwise it is unknown which processes compute on them
            pids += [
                int(self._used[gpu.id]) for gpu in free if self._used.get(gpu.id, "").isdigit()
            ]
        names = list(dict.fromkeys(f"PID {pid}" for pid in pids if pid))
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        if not names:
            return self.description
        return f"{self.description}, taken by {', '.join(names[:_MAX_NAMED])}{more}"

    def claim(self, claims: Claims) -> List[GpuDevice]:
        """Claim the required GPUs; empty if they are not available."""
        free = self.free()
        return [free[name] for name in claims.acquire_some(free, self.count)]

    def _unclaimed(self) -> List[GpuDevice]:
        return [gpu for gpu in self._present if not is_held(gpu.claim)]
