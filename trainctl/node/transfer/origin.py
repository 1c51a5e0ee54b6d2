"""What every place is from which a node gets blobs, and a directory as one."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Tuple

from trainctl.node.system import layout
from trainctl.node.system.failure import Failure
from trainctl.node.system.pace import Pace

if TYPE_CHECKING:
    from trainctl.node.content.parts import Part

_FICLONE = 0x40049409
_READ_BYTES = 2**20

Arrived = Callable[[memoryview], None]
"""Called with each piece as it arrives, while it is still in the processor's cache."""


class Origin:
    """Hands out the bytes of blobs; used by one thread at a time. ``streams``: how many at once get more than one does."""

    streams = 1

    def place_of(self, part: Part) -> Tuple[str, int]:
        """Of which blob, and from where on, a part is read."""
        return part.file.sha256, part.piece.offset

    def read(self, sha256: str, offset: int, view: memoryview, arrived: Arrived) -> None:
        """Fill the view, piece by piece and in order; Failure ``origin`` where there are fewer bytes or no such blob."""
        raise NotImplementedError

    def clone(self, sha256: str, target: int) -> bool:
        """Fill the open file with the whole blob without copying bytes, if that is possible here."""
        raise NotImplementedError

    def read_small(self, sizes: Mapping[str, int]) -> Dict[str, bytearray]:
        """Several whole blobs, by digest."""
        found = {sha256: bytearray(size) for sha256, size in sizes.items()}
        for sha256, data in found.items():
            self.read(sha256, 0, memoryview(data), lambda piece: None)
        return found

    def abort(self) -> None:
        """Give up what is under way, from another thread; for those that may have to wait."""

    def close(self) -> None:
        """Give back what is held open."""
        raise NotImplementedError


class DirectoryOrigin(Origin):
    """A mirror in a directory of this machine: ``blobs/sha256/<2>/<64>``. One stream reads while another hashes."""

    streams = 2

    def __init__(self, path: Any, pace: Optional[Pace] = None) -> None:
        self._path = layout.absolute(path, "origin")
        self._pace = pace or Pace()
        self._open: Optional[int] = None
        self._name = ""

    def read(self, sha256: str, offset: int, view: memoryview, arrived: Arrived) -> None:
        """See Origin."""
        descriptor = self._descriptor(sha256)
        done = 0
        while done < len(view):
            self._pace.spend(min(_READ_BYTES, len(view) - done))
            count = os.preadv(descriptor, [view[done : done + _READ_BYTES]], offset + done)
            if count == 0:
                raise Failure(
                    "origin",
                    f"the mirror's blob {sha256} ends at {offset + done} bytes",
                    f"It lies in {self._path}. Apply again: what is wrong there is mirrored anew.",
                )
            arrived(view[done : done + count])
            done += count

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
