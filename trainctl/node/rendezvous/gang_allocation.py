"""A gang's turn: every rank is in its host's queue, and none holds a GPU before all of them can claim. See DESIGN.md, "Gangs"."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Optional

from trainctl.base.protocol.spec import RunSpec
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import (
    GPU_QUEUE,
    POLL_SECONDS,
    Allocation,
    PendingFn,
    QueueEntry,
    RunQueue,
)
from trainctl.node.scheduling.claims import is_held, wait_for_release
from trainctl.node.scheduling.gpus import GpuRequest

if TYPE_CHECKING:
    from trainctl.node.rendezvous.member import GangMember


class GangAllocation(Allocation):
    """One rank's turn. It reports ``here``, ``slotted``, ``ready`` or ``busy``, ``held`` or ``refused``."""

    def __init__(self, run: NodeRun, spec: RunSpec, pending: PendingFn, gang: GangMember) -> None:
        super().__init__(run, spec, pending)
        self._gang = gang
        self._reported = ("", "")

    def wait(self) -> bool:
        """Until all ranks hold what they want; rank 0 takes the slot of the gang's sweep before."""
        self._gang.send_value({"is": "here"})
        found = self._gang.until("slot", "queue")
        if found is not None and found["do"] == "slot":
            if not self._take_slot():
                return False
            self._gang.send_value({"is": "slotted"})
            found = self._gang.until("queue")
        return found is not None and self._queue(int(found["date"]))

    def _ending(self) -> bool:
        self._gang.heard()
        return self._gang.over or super()._ending()

    def _queue(self, date: int) -> bool:
        gpu_request = self._gpu_request()
        if not gpu_request.count:
            return self._claim_together(gpu_request, None)
        priority = int(self._spec.get("priority") or 0)
        place = QueueEntry(RunQueue(self._run.layout.root, GPU_QUEUE), self._run, priority, date)
        try:
            return self._claim_together(gpu_request, place)
        finally:
            place.leave()

    def _claim_together(self, gpu_request: GpuRequest, place: Optional[QueueEntry]) -> bool:
        """Keep the place in the lane, which others don't pass, until the gang goes on."""
        held = False
        while not self._gang.over and signal.SIGTERM not in signal.sigpending():
            for value in self._gang.heard():
                does = value.get("do")
                if does == "lay out":
                    return True
                if does == "claim":
                    held = self._claim(gpu_request, place)
                elif does == "release":
                    self._gpu_claims.release()
                    self._gpus, self._reported, held = [], ("", ""), False
            before = None if held or place is None else place.run_ahead()
            if not held:
                able = before is None and self._can_claim(gpu_request)
                self._tell("" if able else gpu_request.words if before else gpu_request.why)
            wanted = [before] if before else ([] if held else gpu_request.claims)
            wait_for_release(filter(is_held, wanted), POLL_SECONDS, self._gang.descriptor)
        return False

    def _can_claim(self, gpu_request: GpuRequest) -> bool:
        """Others' computing is looked at before the first word only, and again when it comes to claiming."""
        if not gpu_request.count:
            return True
        return gpu_request.unclaimed if self._reported[0] == "ready" else bool(gpu_request.free())

    def _tell(self, why: str) -> None:
        """Why it can't claim now; nothing if it can."""
        told = ("busy" if why else "ready", why)
        if told != self._reported:
            self._reported = told
            self._gang.send_value({"is": told[0], "why": why})
        if why:
            self._pending(why, GPU_QUEUE)

    def _claim(self, gpu_request: GpuRequest, place: Optional[QueueEntry]) -> bool:
        """Only the first of the lane may."""
        first = place is None or place.run_ahead() is None
        self._gpus = gpu_request.take(self._gpu_claims) if first and gpu_request.count else []
        held = first and len(self._gpus) == gpu_request.count
        self._gang.send_value({"is": "held" if held else "refused"})
        return held
