"""Waiting in the queues of a host: for the runs that this one follows, for a slot of its sweep, for GPUs. See DESIGN.md, "Scheduling"."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import PRIVATE_FILE, make_directory
from trainctl.base.protocol.runs import RunReport
from trainctl.base.protocol.spec import RunDependency, RunSpec
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling import gpus
from trainctl.node.scheduling.claims import Claims, is_held, wait_for_release
from trainctl.node.scheduling.gpus import GpuRequest
from trainctl.node.system.gpus import GpuDevice

PendingFn = Callable[[str, Optional[str]], None]
"""Told what is waited for, and in which lane, as often as that changes."""

_ClaimRequest = Tuple[List[str], str]
"""Claims of which one must be given up before it is worth looking again, and the words for that."""

POLL_SECONDS = 1.0
"""How often a waiting process polls; the release of a claim wakes it at once."""

GPU_QUEUE = "gpus"


class Allocation:
    """What a run holds while it runs, acquired in stages, so that it holds nothing that others could use while it waits."""

    def __init__(self, run: NodeRun, spec: RunSpec, pending: PendingFn) -> None:
        self._run = run
        self._spec = spec
        self._pending = pending
        self._claims = Claims()
        self._gpu_claims = Claims()
        self._gpus: List[GpuDevice] = []
        self._hidden: Mapping[str, str] = {}

    def follow(self) -> bool:
        """Wait until the runs that this one follows have completed; False if a stop was requested. Failure if one never will."""
        for followed in self._spec.get("follows") or ():
            run = NodeRun(self._run.layout, followed["key"])
            while True:
                status = run.status()
                if status is not None and status["status"] == runs.COMPLETED:
                    break
                _check_dependency(followed, status, run)
                self._pending(f"waits for {followed['address']} to complete", None)
                if _wait_for_stop(POLL_SECONDS):
                    return False
        return not _is_stopping()

    def wait(self) -> bool:
        """Wait for a slot and GPUs; False if a stop was requested. Failure if they can never be had."""
        return self._take_slot() and self._take_gpus()

    @property
    def descriptors(self) -> List[int]:
        """What the warden keeps, so that nothing is given up before the job's last process is dead."""
        return [*self._claims.descriptors, *self._gpu_claims.descriptors]

    @property
    def variables(self) -> Dict[str, str]:
        """What shows the job its GPUs."""
        return gpus.gpu_variables(self._gpus) if self._gpus else dict(self._hidden)

    @property
    def gpu_ids(self) -> List[str]:
        """Those that the run has claimed, by uuid; of those that are only declared, by number."""
        return [one.id for one in self._gpus]

    def release(self) -> None:
        """Let the next ones have it."""
        self._claims.release()
        self._gpu_claims.release()

    def _ending(self) -> bool:
        """Whether a stop was requested."""
        return _is_stopping()

    def _take_slot(self) -> bool:
        slots = self._run.order.get("slots", self._spec.get("slots"))
        if not slots:
            return not self._ending()
        name = hashlib.sha256(slots["name"].encode()).hexdigest()[:32]

        def count() -> int:
            return int((self._run.order.get("slots") or slots)["count"])

        def words() -> str:
            return f"waits for one of {count()} slots of {slots['name'].partition(' ')[2]}"

        def take() -> Optional[_ClaimRequest]:
            names = [f"slot/{name}/{number}" for number in range(count())]
            return None if self._claims.take_some(names, 1) else (names, words())

        return self._wait_in_queue(f"slot-{name}", words, take)

    def _gpu_request(self) -> GpuRequest:
        gpu_request = GpuRequest(self._spec)
        self._hidden = gpu_request.hidden
        return gpu_request

    def _take_gpus(self) -> bool:
        gpu_request = self._gpu_request()
        if not gpu_request.count:
            return not self._ending()

        def take() -> Optional[_ClaimRequest]:
            self._gpus = gpu_request.take(self._gpu_claims)
            return None if self._gpus else (gpu_request.claims, gpu_request.why)

        return self._wait_in_queue(GPU_QUEUE, lambda: gpu_request.words, take)

    def _wait_in_queue(
        self, name: str, words: Callable[[], str], take: Callable[[], Optional[_ClaimRequest]]
    ) -> bool:
        """In order, until ``take`` has what it wants: it says what that could be, and None once it is taken. Who is not the first just says ``words``."""
        priority = int(self._spec.get("priority") or 0)
        place = QueueEntry(RunQueue(self._run.layout.root, name), self._run, priority)
        try:
            while not self._ending():
                before = place.run_ahead()
                wanted = ([before], words()) if before else take()
                if wanted is None:
                    return True
                claims, why = wanted
                self._pending(why, name)
                wait_for_release(filter(is_held, claims), POLL_SECONDS)
            return False
        finally:
            place.leave()


def waiting_text(run: NodeRun, record: Mapping[str, Any]) -> Optional[str]:
    """What a run waits for or is at before it runs, with its place, for people: ``waits for 2 of 4 GPUs, 3 ahead``."""
    if record.get("status") not in (runs.PENDING, runs.DEPLOYING) or not record.get("waiting"):
        return None
    words, queue = str(record["waiting"]), record.get("queue")
    ahead = RunQueue(run.layout.root, queue).ahead_of(run.key) if queue else 0
    return f"{words}, {ahead} ahead" if ahead else words


def _check_dependency(followed: RunDependency, status: Optional[RunReport], run: NodeRun) -> None:
    """Failure if the run that is waited for will never complete."""
    if status is None:
        how = "was removed"
    elif status["status"] in runs.ENDED or status["status"] == runs.LOST:
        how = _FAILURE_TEXT.get(status["status"], "was lost")
    elif status["status"] == runs.CREATED and run.supervisor and not status["supervised"]:
        how = "was lost"
    else:
        return
    number = f"run {status['number']}" if status else "the run that it waited for"
    raise Failure("missing", f"{followed['address']} did not complete: {number} {how}")


_FAILURE_TEXT = {
    runs.FAILED: "failed",
    runs.DEPLOY_FAILED: "could not be deployed",
    runs.STOPPED: "was stopped",
}


def _is_stopping() -> bool:
    return signal.SIGTERM in signal.sigpending()


def _wait_for_stop(seconds: float) -> bool:
    """Whether a stop is requested within so many seconds; the signal stays pending."""
    deadline = time.monotonic() + seconds
    while not _is_stopping() and time.monotonic() < deadline:
        time.sleep(min(0.25, seconds))
    return _is_stopping()


_MAX_PRIORITY = 10**9
_ORDER_LENGTH = len("0000000000-00000000000000000000-")


class RunQueue:
    """One thing that is waited for under a ROOT."""

    def __init__(self, root: Path, name: str) -> None:
        self._name = f"{root}\0{name}"
        self.directory = root / "queue" / name

    def records(self) -> List[str]:
        """All of them, in order."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.directory)  # noqa: PTH208 - many look often: no paths are made
            return sorted(name for name in names if len(name) > _ORDER_LENGTH)
        return []

    def ahead_of(self, key: str) -> int:
        """How many records stand before a run's."""
        records = self.records()
        return next((at for at, one in enumerate(records) if record_key(one) == key), len(records))

    def claim(self, key: str) -> str:
        """The claim that the holder of a run's record holds."""
        digest = hashlib.sha256(f"{self._name}\0{key}".encode()).hexdigest()
        return f"wait/{digest[:32]}"


class QueueEntry:
    """One run's place in a lane, from entering to leaving. ``priority`` holds unless the run is given another.

    ``date`` is what it is ordered by then, in Unix nanoseconds; by default as this node has it.
    """

    def __init__(
        self, queue: RunQueue, run: NodeRun, priority: int, date: Optional[int] = None
    ) -> None:
        self._queue = queue
        self._run = run
        self._priority = priority
        self._created = run.queued_ns if date is None else date
        self._claims = Claims()
        self._claims.take(queue.claim(run.key))

    def run_ahead(self) -> Optional[str]:
        """The claim of the run directly before this one; None if this is the first. Its record is created or updated."""
        priority = int(self._run.order.get("priority", self._priority))
        mine = record_name(priority, self._created, self._run.key)
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
        """Make room."""
        for record in self._queue.records():
            if record_key(record) == self._run.key:
                self._remove(record)
        self._claims.release()

    def _remove(self, record: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._queue.directory / record).unlink()


def record_name(priority: int, created_ns: int, key: str) -> str:
    """A run's record: it sorts before those of lower priority, then before those made later."""
    bounded = min(max(priority, -_MAX_PRIORITY), _MAX_PRIORITY)
    return f"{_MAX_PRIORITY - bounded:010d}-{created_ns:020d}-{key}"


def record_key(record: str) -> str:
    """The run of a record."""
    return record[_ORDER_LENGTH:]
