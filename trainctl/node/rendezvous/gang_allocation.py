"""Allocation of a gang: claim GPUs when all ranks can. See DESIGN.md, "Gangs"."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Optional

from trainctl.base.protocol.runs import RunSpec
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import (
    GPU_QUEUE,
    POLL_SECONDS,
    Allocation,
    GpuRequest,
    PendingFn,
    QueueEntry,
    RunQueue,
)
from trainctl.node.scheduling.claims import is_held, wait_for_release

if TYPE_CHECKING:
    from trainctl.node.rendezvous.member import GangMember


class GangAllocation(Allocation):
    """One rank's allocation, in steps that it reports to the coordinator."""

    def __init__(self, run: NodeRun, spec: RunSpec, pending: PendingFn, gang: GangMember) -> None:
        super().__init__(run, spec, pending)
        self._gang = gang
        self._reported = ("", "")

    def acquire(self) -> bool:
        """Wait until all ranks hold their GPUs; rank 0 acquires the sweep's slot before."""
        self._gang.send_value({"is": "here"})
        decision = self._gang.wait_for("slot", "queue")
        if decision is not None and decision["do"] == "slot":
            if not self._acquire_slot():
                return False
            self._gang.send_value({"is": "slotted"})
            decision = self._gang.wait_for("queue")
        return decision is not None and self._queue(int(decision["date"]))

    def _is_stopping(self) -> bool:
        self._gang.receive()
        return self._gang.is_over or super()._is_stopping()

    def _queue(self, date: int) -> bool:
        gpu_request = self._gpu_request()
        if not gpu_request.count:
            return self._claim_together(gpu_request, None)
        priority = int(self._spec.get("priority") or 0)
        entry = QueueEntry(RunQueue(self._run.layout.root, GPU_QUEUE), self._run, priority, date)
        try:
            return self._claim_together(gpu_request, entry)
        finally:
            entry.leave()

    def _claim_together(self, gpu_request: GpuRequest, entry: Optional[QueueEntry]) -> bool:
        """Stay in the queue and claim on request; True once all ranks have claimed."""
        held = False
        while not self._gang.is_over and signal.SIGTERM not in signal.sigpending():
            for value in self._gang.receive():
                action = value.get("do")
                if action == "lay out":
                    return True
                if action == "claim":
                    held = self._claim(gpu_request, entry)
                elif action == "release":
                    self._gpu_claims.release()
                    self._gpus, self._reported, held = [], ("", ""), False
            ahead = None if held or entry is None else entry.run_ahead()
            if not held:
                able = ahead is None and self._can_claim(gpu_request)
                reason = gpu_request.description if ahead else gpu_request.waiting_reason
                self._report("" if able else reason)
            claims = [ahead] if ahead else ([] if held else gpu_request.claims)
            wait_for_release(filter(is_held, claims), POLL_SECONDS, self._gang.descriptor)
        return False

    def _can_claim(self, gpu_request: GpuRequest) -> bool:
        """Check for free GPUs; when ready, only for claims of other runs."""
        if not gpu_request.count:
            return True
        return gpu_request.unclaimed if self._reported[0] == "ready" else bool(gpu_request.free())

    def _report(self, reason: str) -> None:
        """Report why this rank can't claim now, or with an empty reason that it can."""
        report = ("busy" if reason else "ready", reason)
        if report != self._reported:
            self._reported = report
            self._gang.send_value({"is": report[0], "why": reason})
        if reason:
            self._pending(reason, GPU_QUEUE)

    def _claim(self, gpu_request: GpuRequest, entry: Optional[QueueEntry]) -> bool:
        """Claim GPUs if this run is the first in the queue."""
        is_first = entry is None or entry.run_ahead() is None
        self._gpus = gpu_request.claim(self._gpu_claims) if is_first and gpu_request.count else []
        held = is_first and len(self._gpus) == gpu_request.count
        self._gang.send_value({"is": "held" if held else "refused"})
        return held
