"""Object stores and state logs that fail on purpose: at a chosen call, in a chosen way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from trainctl.base.json import JsonObject
from trainctl.base.objects import ObjectStore
from trainctl.errors import StateError
from trainctl.plugin_api.state import LogSlice, StateLog

T = TypeVar("T")


class StoreFault(Enum):
    """What happens instead of a call."""

    FAIL = auto()
    """Nothing is done, and StateError raised."""
    LOSE = auto()
    """It is done, and its answer lost: StateError is raised."""
    REFUSE = auto()
    """It is done, and reported as refused: False is returned."""
    DELAY = auto()
    """StateError is raised, and it is done at the next call but one."""
    STALL = auto()
    """It waits until ``Faults.release`` is called, then is done."""
    DIE = auto()
    """The process is killed before it is done."""
    DIE_AFTER = auto()
    """The process is killed after it was done."""


class StoreFaults:
    """Which calls go wrong, and how: by their number, counting from 1, or all while ``always`` is set.

    One may be shared by several wrappers, which then count together. ``calls`` is how many there were so far;
    ``stalled`` is set while one waits.
    """

    def __init__(
        self, at: Mapping[int, StoreFault] | None = None, always: StoreFault | None = None
    ) -> None:
        self._at = dict(at or {})
        self.always = always
        self.calls = 0
        self.stalled = threading.Event()
        self._go_on = threading.Event()
        self._lock = threading.Lock()
        self._delayed: list[tuple[int, Callable[[], Any]]] = []

    def plant(self, fault: StoreFault) -> None:
        """Let the next call go wrong."""
        self._at[self.calls + 1] = fault

    def release(self) -> None:
        """Let what is stalled go on; nothing stalls any more."""
        self._go_on.set()

    def around(self, call: Callable[[], T]) -> T:
        """Make the call, or what is to happen instead."""
        with self._lock:
            self.calls += 1
            fault = self._at.get(self.calls, self.always)
        self._deliver()
        if fault is StoreFault.DELAY:
            self._delayed.append((self.calls + 1, call))
            raise StateError("a planted fault: it is done later")
        if fault is StoreFault.FAIL:
            raise StateError("a planted fault: nothing was done")
        if fault is StoreFault.STALL:
            self.stalled.set()
            self._go_on.wait()
        if fault is StoreFault.DIE:
            die()
        answer = call()
        if fault is StoreFault.DIE_AFTER:
            die()
        if fault is StoreFault.LOSE:
            raise StateError("a planted fault: it was done, and the answer lost")
        return False if fault is StoreFault.REFUSE else answer  # type: ignore[return-value]

    def _deliver(self) -> None:
        """Do what was delayed until this call."""
        due = [call for at, call in self._delayed if at < self.calls]
        self._delayed = [(at, call) for at, call in self._delayed if at >= self.calls]
        for call in due:
            call()


def die() -> None:
    """End this process as SIGKILL does: no handler, no ``finally``, no buffer is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal may arrive after the call returned


class FaultyStore:
    """An object store of which calls that write go wrong; those that read too with ``reads``."""

    def __init__(self, store: ObjectStore, faults: StoreFaults, *, reads: bool = False) -> None:
        self._store = store
        self._faults = faults
        self._faulty = _WRITES | _READS if reads else _WRITES

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in self._faulty:
            return attribute
        return lambda *args, **options: self._faults.around(lambda: attribute(*args, **options))


_WRITES = {"put", "put_if_absent", "delete", "sync"}
_READS = {"get", "fetch", "stat", "list"}


class FaultyLog:
    """A state log of which appends go wrong."""

    def __init__(self, log: StateLog, faults: StoreFaults) -> None:
        self._log = log
        self._faults = faults

    @property
    def url(self) -> str:
        return self._log.url

    def read(self, position: int = 0) -> LogSlice:
        return self._log.read(position)

    def append(self, position: int, entries: Sequence[JsonObject]) -> None:
        self._faults.around(lambda: self._log.append(position, entries))

    def snapshot(self, position: int, state: JsonObject) -> None:
        self._log.snapshot(position, state)

    def replay(self) -> Iterator[JsonObject]:
        return self._log.replay()
