"""Wait for dependencies, sweep slots and GPUs. See DESIGN.md, "Scheduling"."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from trainctl.base.filesystem.files import PRIVATE_FILE, make_directory
from trainctl.base.protocol.runs import RunDependency, RunReport, RunSpec
from trainctl.errors import TrainctlError, UnknownOnNode
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import NodeRun, evaluated_run, gpus_of
from trainctl.node.scheduling.claims import Claims, holder_pid, is_held, wait_for_release
from trainctl.node.system.gpus import AMD, GpuDevice, ListGpusFn, gpu_users, list_gpus

PendingFn = Callable[[str, Optional[str]], None]
"""Called with the reason for waiting and the queue, whenever they change."""

_ClaimRequest = Tuple[List[str], str]
"""Claims one of which must be released before trying again, and the reason to report."""

POLL_SECONDS = 1.0
"""Polling interval; the release of a claim ends the wait at once."""

GPU_QUEUE = "gpus"


class Allocation:
    """Resources of a run, acquired in stages."""

    def __init__(self, run: NodeRun, spec: RunSpec, pending: PendingFn) -> None:
        self._run = run
        self._spec = spec
        self._pending = pending
        self._claims = Claims()
        self._gpu_claims = Claims()
        self._gpus: List[GpuDevice] = []
        self._hidden: Mapping[str, str] = {}

    def wait_for_dependencies(self) -> bool:
        """Wait for dependencies; False on a stop request, TrainctlError if one can't complete."""
        for dependency in self._spec.get("follows") or ():
            if dependency["key"] == evaluated_run(self._spec):
                continue
            run = NodeRun(self._run.layout, dependency["key"])
            while True:
                status = run.status()
                if status is not None and status["status"] == runs.COMPLETED:
                    break
                _check_dependency(dependency, status, run)
                self._pending(f"waits for {dependency['address']} to complete", None)
                deadline = time.monotonic() + POLL_SECONDS
                while not _is_stop_requested() and time.monotonic() < deadline:
                    time.sleep(0.25)  # the signal stays pending, and doesn't end the sleep
                if _is_stop_requested():
                    return False
        return not _is_stop_requested()

    def acquire(self) -> bool:
        """Wait for a slot and GPUs; False on a stop request."""
        if not self._acquire_slot():
            return False
        gpu_request = self._gpu_request()
        if not gpu_request.count:
            return not self._is_stopping()

        def claim() -> Optional[_ClaimRequest]:
            self._gpus = gpu_request.claim(self._gpu_claims)
            return None if self._gpus else (gpu_request.claims, gpu_request.waiting_reason)

        return self._wait_in_queue(GPU_QUEUE, lambda: gpu_request.description, claim)

    @property
    def descriptors(self) -> List[int]:
        """Descriptors that hold the claims; the warden keeps them open."""
        return [*self._claims.descriptors, *self._gpu_claims.descriptors]

    @property
    def variables(self) -> Dict[str, str]:
        """Environment variables that expose the GPUs to the job."""
        if granted := self._spec.get("batch"):
            return dict(granted["variables"])
        if not self._gpus:
            return dict(self._hidden)
        numbers = ",".join(str(gpu.number) for gpu in self._gpus)
        variables = {"BT_NUM_GPUS": str(len(self._gpus))}
        if self._gpus[0].vendor == AMD:
            return {**variables, "HIP_VISIBLE_DEVICES": numbers}
        return {**variables, "CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    @property
    def gpu_ids(self) -> List[str]:
        """UUIDs of the claimed GPUs; numbers of declared ones and of those of a batch system."""
        if granted := self._spec.get("batch"):
            return granted["gpus"]
        return [gpu.id for gpu in self._gpus]

    def release(self) -> None:
        """Release all claims."""
        self._claims.release()
        self._gpu_claims.release()

    def _is_stopping(self) -> bool:
        return _is_stop_requested()

    def _acquire_slot(self) -> bool:
        slots = self._run.order.get("slots", self._spec.get("slots"))
        if not slots:
            return not self._is_stopping()
        name = hashlib.sha256(slots["name"].encode()).hexdigest()[:32]

        def count() -> int:
            return int((self._run.order.get("slots") or slots)["count"])

        def reason() -> str:
            return f"waits for one of {count()} slots of {slots['name'].partition(' ')[2]}"

        def claim() -> Optional[_ClaimRequest]:
            names = [f"slot/{name}/{number}" for number in range(count())]
            return None if self._claims.acquire_some(names, 1) else (names, reason())

        return self._wait_in_queue(f"slot-{name}", reason, claim)

    def _gpu_request(self) -> GpuRequest:
        gpu_request = GpuRequest(self._spec)
        self._hidden = gpu_request.hidden
        return gpu_request

    def _wait_in_queue(
        self, name: str, reason: Callable[[], str], claim: Callable[[], Optional[_ClaimRequest]]
    ) -> bool:
        """Wait in the queue until ``claim`` returns None; report ``reason``."""
        entry = QueueEntry(self._run, self._spec, name)
        try:
            while not self._is_stopping():
                ahead = entry.run_ahead()
                missing = ([ahead], reason()) if ahead else claim()
                if missing is None:
                    return True
                claims, text = missing
                self._pending(text, name)
                wait_for_release(filter(is_held, claims), POLL_SECONDS)
            return False
        finally:
            entry.leave()


def waiting_text(run: NodeRun, record: Mapping[str, Any]) -> Optional[str]:
    """Describe what a run waits for: ``waits for 2 of 4 GPUs, 3 ahead``."""
    if record.get("status") not in (runs.PENDING, runs.DEPLOYING) or not record.get("waiting"):
        return None
    text, queue = str(record["waiting"]), record.get("queue")
    records = RunQueue(run.layout.root, queue).records() if queue else []
    own = (position for position, name in enumerate(records) if record_key(name) == run.key)
    ahead = next(own, len(records))
    return f"{text}, {ahead} ahead" if ahead else text


def _check_dependency(dependency: RunDependency, status: Optional[RunReport], run: NodeRun) -> None:
    """Raise TrainctlError if the run can't complete any more."""
    if status is None:
        reason = "was removed"
    elif status["status"] in runs.ENDED or status["status"] == runs.LOST:
        reason = _FAILURE_TEXT.get(status["status"], "was lost")
    elif status["status"] == runs.CREATED and run.supervisor and not status["supervised"]:
        reason = "was lost"
    else:
        return
    number = f"run {status['number']}" if status else "its run"
    raise UnknownOnNode(f"{dependency['address']} did not complete: {number} {reason}")


_FAILURE_TEXT = {
    runs.FAILED: "failed",
    runs.DEPLOY_FAILED: "failed to deploy",
    runs.STOPPED: "was stopped",
}


def _is_stop_requested() -> bool:
    return signal.SIGTERM in signal.sigpending()


_MAX_PRIORITY = 10**9
_ORDER_LENGTH = len("0000000000-00000000000000000000-")


class RunQueue:
    """A queue of runs under one root directory."""

    def __init__(self, root: Path, name: str) -> None:
        self._name = f"{root}\0{name}"
        self.directory = root / "queue" / name

    def records(self) -> List[str]:
        """Names of all records, in order."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.directory)  # noqa: PTH208 - called often: creates no Path objects
            return sorted(name for name in names if len(name) > _ORDER_LENGTH)
        return []

    def claim(self, key: str) -> str:
        """Name of the claim that a waiting run holds."""
        digest = hashlib.sha256(f"{self._name}\0{key}".encode()).hexdigest()
        return f"wait/{digest[:32]}"


class QueueEntry:
    """A run's entry in a queue, until ``leave``.

    ``date`` orders entries of the same priority, in Unix nanoseconds; by default the run's ``queued_ns``.
    """

    def __init__(self, run: NodeRun, spec: RunSpec, name: str, date: Optional[int] = None) -> None:
        self._queue = RunQueue(run.layout.root, name)
        self._run = run
        self._priority = int(spec.get("priority") or 0)
        self._created = run.queued_ns if date is None else date
        self._claims = Claims()
        self._claims.acquire(self._queue.claim(run.key))

    def run_ahead(self) -> Optional[str]:
        """Claim of the run directly ahead, None for the first; updates the record."""
        priority = int(self._run.order.get("priority", self._priority))
        # sorts by descending priority, then by time
        order = _MAX_PRIORITY - min(max(priority, -_MAX_PRIORITY), _MAX_PRIORITY)
        mine = f"{order:010d}-{self._created:020d}-{self._run.key}"
        records = self._queue.records()
        own = [record for record in records if record_key(record) == self._run.key]
        if mine not in own:
            make_directory(self._queue.directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            os.close(os.open(self._queue.directory / mine, flags, PRIVATE_FILE))
        for old in own:
            if old != mine:
                self._remove(old)
        for record in reversed(
            [record for record in records if record < mine and record not in own]
        ):
            claim = self._queue.claim(record_key(record))
            if is_held(claim):
                return claim
            self._remove(record)
        return None

    def leave(self) -> None:
        """Remove the record and release its claim."""
        for record in self._queue.records():
            if record_key(record) == self._run.key:
                self._remove(record)
        self._claims.release()

    def _remove(self, record: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._queue.directory / record).unlink()


def record_key(record: str) -> str:
    """Key of the run of a record."""
    return record[_ORDER_LENGTH:]


VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that list a job's own GPUs."""

NO_GPUS = {"BT_NUM_GPUS": "0", **dict.fromkeys(VISIBILITY_VARIABLES, "")}
"""Variables that hide all GPUs from a program."""

_FOREIGN_SECONDS = 5.0
"""Interval of checks for other processes that use GPUs: each one starts a program."""

_MAX_NAMED = 2
"""How many processes to name in a status line."""


def usable_gpus(declared: Optional[int], gpu_source: ListGpusFn = list_gpus) -> List[GpuDevice]:
    """GPUs that jobs may claim: the first ``declared``, or all with None; that many by index if none is reported.

    TrainctlError if more are declared than reported.
    """
    if declared == 0:
        return []
    reported = sorted(gpu_source())
    if not reported:
        return [GpuDevice(number, f"index-{number}") for number in range(declared or 0)]
    if declared is not None and declared > len(reported):
        raise UnknownOnNode(f"{declared} GPUs declared, but the node has {len(reported)}")
    return reported[:declared]


def name_pids(pids: Iterable[Any]) -> str:
    """``PID 1, PID 2 and 3 more``; empty without PIDs."""
    names = list(dict.fromkeys(f"PID {pid}" for pid in pids))
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"


class GpuRequest:
    """GPUs that a specification requires; TrainctlError if the host has too few.

    If all GPUs are requested and the host's tools fail, none is claimed and the variables in ``hidden`` hide them.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.hidden: Mapping[str, str] = {}
        wanted = gpus_of(spec)
        kind, count = wanted["kind"], wanted["count"]
        try:
            usable = usable_gpus(wanted["declared"])
        except TrainctlError:
            if count:
                raise
            usable, self.hidden = [], NO_GPUS
        self._present = [gpu for gpu in usable if gpu.matches_kind(kind)]
        self.count = len(self._present) if count is None else count
        if self.count > len(self._present):
            required = f"{self.count} {kind} GPUs" if kind else f"{self.count} GPUs"
            raise UnknownOnNode(f"{required} required, but the node has {len(self._present)}")
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
        named = name_pids(pid for pid in pids if pid)
        return f"{self.description}, taken by {named}" if named else self.description

    def claim(self, claims: Claims) -> List[GpuDevice]:
        """Claim the required GPUs; empty if they are not available."""
        free = self.free()
        return [free[name] for name in claims.acquire_some(free, self.count)]

    def _unclaimed(self) -> List[GpuDevice]:
        return [gpu for gpu in self._present if not is_held(gpu.claim)]
