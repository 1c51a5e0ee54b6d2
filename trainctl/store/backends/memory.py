"""Object store in memory: the reference adapter, used for ``memory:`` states."""

from __future__ import annotations

import threading
import time
from typing import BinaryIO, Callable, Dict, Iterator, Optional, Sequence, Tuple, Union

from trainctl.base.objects import ObjectStat, check_key


class MemoryObjects:
    """An ObjectStore; ``clock`` returns the modification time of new objects."""

    def __init__(self, url: str = "memory:", clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: Dict[str, Tuple[bytes, float]] = {}

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        with self._lock:
            data, _ = self._objects.get(check_key(key), (None, 0.0))
        return None if data is None else data[offset : None if length is None else offset + length]

    def fetch(self, key: str, into: BinaryIO) -> bool:
        data = self.get(key)
        if data is not None:
            into.write(data)
        return data is not None

    def put(
        self, key: str, data: Union[bytes, bytearray, memoryview], *, durable: bool = True
    ) -> None:
        with self._lock:
            self._objects[check_key(key)] = bytes(data), self._clock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._lock:
            if check_key(key) in self._objects:
                return False
            self._objects[check_key(key)] = bytes(data), self._clock()
            return True

    def sync(self, keys: Sequence[str]) -> None:
        """Memory keeps nothing."""

    def stat(self, key: str) -> Optional[ObjectStat]:
        with self._lock:
            data, modified = self._objects.get(check_key(key), (None, 0.0))
        return None if data is None else ObjectStat(key, len(data), modified)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        with self._lock:
            below = f"{prefix}/" if prefix else ""
            matching = sorted(key for key in self._objects if key.startswith(below))
        for key in matching:
            stat = self.stat(key)
            if key > after and stat is not None:
                yield stat

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(check_key(key), None)
