"""A lock among processes of one machine: a file linked into place, superseded when its holder is dead."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from pathlib import Path
from types import TracebackType
from typing import List, Optional, Type

from trainctl.base.files import create_once, read_json
from trainctl.base.processes import alive, identity

_POLL_SECONDS = 0.05


class Lock:
    """``with Lock(directory, name)`` waits for its turn. It saves work; nothing may be wrong if it fails to exclude."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._held: Optional[Path] = None

    def __enter__(self) -> Lock:
        while not self.try_acquire():
            time.sleep(_POLL_SECONDS)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Take the lock if nobody alive has it."""
        numbers = self._numbers()
        if any(self._may_be_held(number) for number in numbers):
            return False
        mine = self._path(numbers[-1] + 1 if numbers else 1)
        if not create_once(mine, json.dumps(identity()).encode()):
            return False
        self._held = mine
        return self._alone() or self._step_back()

    def _alone(self) -> bool:
        """Whether nobody took it meanwhile under a number that was free again; clears away the dead."""
        for path in (self._path(number) for number in self._numbers()):
            if path == self._held:
                continue
            if alive(read_json(path)):
                return False
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        return True

    def _step_back(self) -> bool:
        self.release()
        time.sleep(random.uniform(0, _POLL_SECONDS))  # noqa: S311 - two that met must not meet again
        return False

    def _may_be_held(self, number: int) -> bool:
        holder = read_json(self._path(number))
        return holder is None or alive(holder)  # None: released since it was listed; look again

    def release(self) -> None:
        """Give the lock back; no error if somebody removed it."""
        if self._held is not None:
            with contextlib.suppress(FileNotFoundError):
                self._held.unlink()
            self._held = None

    @classmethod
    def clear_dead(cls, directory: Path) -> None:
        """Remove what dead holders left of any lock there: of one that nobody takes again it would stay."""
        left = (re.fullmatch(r"([^.].*)\.lock\.\d+", path.name) for path in directory.iterdir())
        for name in {match[1] for match in left if match}:
            lock = cls(directory, name)
            if lock.try_acquire():
                lock.release()

    def _path(self, number: int) -> Path:
        return self._directory / f"{self._name}.lock.{number}"

    def _numbers(self) -> List[int]:
        pattern = re.compile(re.escape(self._name) + r"\.lock\.(\d+)")
        matches = (pattern.fullmatch(path.name) for path in self._directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)
