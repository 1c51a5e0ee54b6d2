"""An object store: the little that state needs of a directory, a bucket or memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class ObjectStore(Protocol):
    """Keys are ``/``-separated names of ``[A-Za-z0-9._-]`` that don't begin with a dot; values are bytes, written whole or not at all.

    Every method may raise StateError with what to do about it, and may be called from many threads.
    """

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object, durably. False, and nothing written, if the key exists. Never replaces."""
        ...

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace the object at once: readers see the old bytes or the new.

        What is not ``durable`` may be undone by a power cut; a store that can't be quicker then ignores the word.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The bytes, or None if there is no such object."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[str]:
        """Keys that start with the prefix and sort after ``after``, in ascending order."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none."""
        ...
