"""A gang's turn: every rank is in its host's queue, and none holds a GPU before all of them can claim. See DESIGN.md, "Gangs"."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Optional

from trainctl.base.protocol.spec import RunSpec
from trainctl.node.runs.record import Run
from trainctl.node.turns.claims import await_release, is_held
from trainctl.node.turns.gpus import GpuRequest
from trainctl.node.turns.turn import GPU_LANE, LOOK_SECONDS, Pending, Queue, QueuePlace, Turn

if TYPE_CHECKING:
    from trainctl.node.gang.member import GangMember


class GangTurn(Turn):
    """One rank's turn. It reports ``here``, ``slotted``, ``ready`` or ``busy``, ``held`` or ``refused``."""

    def __init__(self, run: Run, spec: RunSpec, pending: Pending, gang: GangMember) -> None:
        super().__init__(run, spec, pending)
        self._gang = gang
        self._told = ("", "")

    def wait(self) -> bool:
        """Until all ranks hold what they want; rank 0 takes the slot of the gang's sweep before."""
        self._gang.say({"is": "here"})
        found = self._gang.until("slot", "queue")
        if found is not None and found["do"] == "slot":
            if not self._take_slot():
                return False
            self._gang.say({"is": "slotted"})
            found = self._gang.until("queue")
        return found is not None and self._queue(int(found["date"]))

    def _ending(self) -> bool:
        self._gang.heard()
        return self._gang.over or super()._ending()

    def _queue(self, date: int) -> bool:
        wish = self._wish()
        if not wish.count:
            return self._together(wish, None)
        priority = int(self._spec.get("priority") or 0)
        place = QueuePlace(Queue(self._run.layout.root, GPU_LANE), self._run, priority, date)
        try:
            return self._together(wish, place)
        finally:
            place.leave()

    def _together(self, wish: GpuRequest, place: Optional[QueuePlace]) -> bool:
        """Keep the place in the lane, which others don't pass, until the gang goes on."""
        held = False
        while not self._gang.over and signal.SIGTERM not in signal.sigpending():
            for value in self._gang.heard():
                does = value.get("do")
                if does == "lay out":
                    return True
                if does == "claim":
                    held = self._claim(wish, place)
                elif does == "release":
                    self._gpu_claims.release()
                    self._gpus, self._told, held = [], ("", ""), False
            before = None if held or place is None else place.behind()
            if not held:
                able = before is None and self._able(wish)
                self._tell("" if able else wish.words if before else wish.why)
            wanted = [before] if before else ([] if held else wish.claims)
            await_release(filter(is_held, wanted), LOOK_SECONDS, self._gang.descriptor)
        return False

    def _able(self, wish: GpuRequest) -> bool:
        """Others' computing is looked at before the first word only, and again when it comes to claiming."""
        if not wish.count:
            return True
        return wish.unclaimed if self._told[0] == "ready" else bool(wish.free())

    def _tell(self, why: str) -> None:
        """Why it can't claim now; nothing if it can."""
        told = ("busy" if why else "ready", why)
        if told != self._told:
            self._told = told
            self._gang.say({"is": told[0], "why": why})
        if why:
            self._pending(why, GPU_LANE)

    def _claim(self, wish: GpuRequest, place: Optional[QueuePlace]) -> bool:
        """Only the first of the lane may."""
        first = place is None or place.behind() is None
        self._gpus = wish.take(self._gpu_claims) if first and wish.count else []
        held = first and len(self._gpus) == wish.count
        self._gang.say({"is": "held" if held else "refused"})
        return held
