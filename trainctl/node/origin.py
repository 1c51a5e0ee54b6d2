"""Where a node gets blobs from. More kinds of origin are more classes with the same three methods."""

from __future__ import annotations

import fcntl
import os
from typing import Any, Optional

from trainctl.node import layout
from trainctl.node.failure import Failure
from trainctl.node.pace import Pace

_FICLONE = 0x40049409


class Origin:
    """Hands out the bytes of blobs; used by one thread at a time. ``streams``: how many at once get more than one does."""

    streams = 1

    def read(self, sha256: str, offset: int, length: int) -> bytearray:
        """Exactly so many bytes; Failure ``origin`` where there are fewer or no such blob."""
        raise NotImplementedError

    def clone(self, sha256: str, target: int) -> bool:
        """Fill the open file with the whole blob without copying bytes, if that is possible here."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what is held open."""
        raise NotImplementedError


class DirectoryOrigin(Origin):
    """A mirror in a directory of this machine: ``blobs/sha256/<2>/<64>``."""

    def __init__(self, path: Any) -> None:
        self._path = layout.absolute(path, "origin")
        self._open: Optional[int] = None
        self._name = ""

    def read(self, sha256: str, offset: int, length: int) -> bytearray:
        """See Origin."""
        data = bytearray(length)
        view = memoryview(data)
        descriptor = self._descriptor(sha256)
        done = 0
        while done < length:
            count = os.preadv(descriptor, [view[done:]], offset + done)
            if count == 0:
                raise Failure(
                    "origin",
                    f"the mirror's blob {sha256} ends at {offset + done} bytes",
                    f"It lies in {self._path}. Apply again: what is wrong there is mirrored anew.",
                )
            done += count
        return data

    def clone(self, sha256: str, target: int) -> bool:
        """See Origin."""
        try:
            fcntl.ioctl(target, _FICLONE, self._descriptor(sha256))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """See Origin."""
        if self._open is not None:
            os.close(self._open)
            self._open, self._name = None, ""

    def _descriptor(self, sha256: str) -> int:
        if self._open is not None and self._name == sha256:
            return self._open
        self.close()
        path = self._path / "blobs" / "sha256" / sha256[:2] / sha256
        try:
            self._open = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Failure(
                "origin",
                f"the mirror {self._path} does not hold blob {sha256}",
                "Apply again: what is missing there is mirrored anew.",
            ) from None
        self._name = sha256
        return self._open


def open_origin(value: Any, pace: Optional[Pace] = None) -> Origin:
    """The origin that a request describes; ``pace`` bounds what several of them take together."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "directory":
        return DirectoryOrigin(value.get("path"))
    if kind == "http":
        from trainctl.node.http_origin import HttpOrigin  # only who fetches that way pays for it

        return HttpOrigin(value, pace)
    raise Failure("request", f"this node program knows no origin of type {kind!a}")
