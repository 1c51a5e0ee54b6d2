"""The state of a walk through the graph: which changes wait, run and are over."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from trainctl.apply.result import Result
from trainctl.apply.step import Deferred
from trainctl.errors import TrainctlError
from trainctl.model.address import Address
from trainctl.plan.values import Change


class Walk:
    """Hands out changes in their turn and takes back how they ended. Only the thread that walks touches it."""

    def __init__(
        self,
        changes: Mapping[Address, Change],
        waits: Mapping[Address, set[Address]],
        result: Result,
    ) -> None:
        self._waiting = dict(changes)
        self._waits = {address: set(needed) for address, needed in waits.items()}
        self._wanted_by: dict[Address, list[Address]] = {address: [] for address in changes}
        for address, needed in self._waits.items():
            for one in needed:
                self._wanted_by[one].append(address)
        self._ready = deque(address for address in changes if not self._waits[address])
        self._result = result
        self.running: set[Address] = set()

    def take_ready(self, most: int) -> list[Change]:
        """Changes whose turn has come, as many as may run beside those that do, in plan order."""
        taken = []
        while self._ready and len(self.running) < most:
            address = self._ready.popleft()
            if address not in self._waiting:
                continue
            self.running.add(address)
            taken.append(self._waiting.pop(address))
        return taken

    def leave_alone(self, change: Change) -> None:
        """Don't make a change; what stands on things as they are now, or needs what they would become, is skipped."""
        if self._waiting.pop(change.address, None) is not None:
            self._result.left_alone.append(change)
            self._skip_dependants(change.address, change.address)

    def settle(self, change: Change, error: TrainctlError | None) -> None:
        """Note how a change ended; what waited only for it may run, what needed it and can't have it is skipped."""
        self.running.discard(change.address)
        if error is not None:
            ended = self._result.deferred if isinstance(error, Deferred) else self._result.failed
            ended[change.address] = error
            self._skip_dependants(change.address, change.address)
            return
        self._result.done.append(change)
        for address in self._wanted_by[change.address]:
            self._waits[address].discard(change.address)
            if not self._waits[address] and address in self._waiting:
                self._ready.append(address)

    def close(self) -> None:
        """Note what was never started."""
        self._result.not_started += list(self._waiting)

    def _skip_dependants(self, address: Address, cause: Address) -> None:
        todo = [address]
        while todo:
            for dependant in self._wanted_by[todo.pop()]:
                if self._waiting.pop(dependant, None) is not None:
                    self._result.skipped[dependant] = cause
                    todo.append(dependant)
