"""Objects in memory: the reference for what an object store means, and the store behind ``memory:`` states."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from trainctl.spi.objects import ObjectStore
from trainctl_state.keys import check_key


class MemoryStore:
    """An object store in a dictionary."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, bytes] = {}

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; False if the key exists."""
        with self._lock:
            if check_key(key) in self._objects:
                return False
            self._objects[key] = data
            return True

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace the object."""
        with self._lock:
            self._objects[check_key(key)] = data

    def get(self, key: str) -> bytes | None:
        """The bytes, or None."""
        with self._lock:
            return self._objects.get(check_key(key))

    def list(self, prefix: str, after: str = "") -> Iterator[str]:
        """Keys with the prefix that sort after ``after``, as they were at the call."""
        with self._lock:
            return iter(sorted(k for k in self._objects if k.startswith(prefix) and k > after))

    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none."""
        with self._lock:
            self._objects.pop(check_key(key), None)


_shared: dict[str, MemoryStore] = {}
_shared_lock = threading.Lock()


def shared_store(name: str) -> MemoryStore:
    """The one store of that name in this process."""
    with _shared_lock:
        return _shared.setdefault(name, MemoryStore())


_: type[ObjectStore] = MemoryStore
