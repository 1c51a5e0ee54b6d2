"""What every place is from which a node gets blobs, and a directory as one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Tuple

from trainctl.base.failure import Failure
from trainctl.base.listing import Chunk, ListedFile
from trainctl.base.pace import Pace
from trainctl.node.content.runs import Place, read_runs
from trainctl.node.system import layout
from trainctl.node.transfer.shelf import MirrorShelf, Opened, opened_together

if TYPE_CHECKING:
    from trainctl.node.content.parts import Part

_READ_BYTES = 2**20

Clone = Callable[[int, Chunk], bool]
"""Fills a chunk from the start of an open file; see PartialFile."""
Arrived = Callable[[memoryview], None]
"""Called with each piece as it arrives, while it is still in the processor's cache."""


class Origin:
    """Hands out the bytes of blobs; used by one thread at a time. ``streams``: how many at once get more than one does."""

    streams = 1

    def place_of(self, part: Part) -> Tuple[str, int]:
        """Of which blob, and from where on, a part is read."""
        return part.file.sha256, part.chunk.offset

    def read(self, sha256: str, offset: int, view: memoryview, arrived: Arrived) -> None:
        """Fill the view, piece by piece and in order; Failure ``origin`` where there are fewer bytes or no such blob."""
        raise NotImplementedError

    def clone(self, file: ListedFile, clone: Clone) -> bool:
        """Fill a file chunk by chunk without copying bytes; False if that is not possible here."""
        return False

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
    """A directory of this machine that is laid out like a mirror. One stream reads while another hashes."""

    streams = 2

    def __init__(self, path: Any, pace: Optional[Pace] = None) -> None:
        self._path = layout.absolute(path, "origin")
        self._shelf = MirrorShelf(self._path)
        self._pace = pace or Pace()
        self._open: Optional[Opened] = None
        self._name = ""

    def read(self, sha256: str, offset: int, view: memoryview, arrived: Arrived) -> None:
        """See Origin."""
        found = self._opened(sha256)
        done = 0
        while done < len(view):
            at = found.start + offset + done
            end = min(done + _READ_BYTES, len(view), done + max(0, found.end - at))
            self._pace.spend(end - done)
            count = os.preadv(found.stream.fileno(), [view[done:end]], at)
            if count == 0:
                raise self._cut_off(sha256, offset + done)
            arrived(view[done : done + count])
            done += count

    def read_small(self, sizes: Mapping[str, int]) -> Dict[str, bytearray]:
        """See Origin. Those that lie together are read together."""
        with opened_together(self._shelf.open_near, sizes) as found:
            places = []
            for (sha256, size), one in zip(sizes.items(), found):
                if one is None:
                    raise self._absent(sha256)
                if one.size != size:
                    raise self._cut_off(sha256, one.size)
                places.append(Place(one.stream.fileno(), one.start, one.end))
            self._pace.spend(sum(sizes.values()))
            return dict(zip(sizes, map(bytearray, read_runs(places))))

    def clone(self, file: ListedFile, clone: Clone) -> bool:
        """See Origin."""
        stream = self._shelf.alone(file.sha256)
        if stream is None:
            return False
        with stream:
            return clone(stream.fileno(), Chunk(0, 0, file.sha256))

    def close(self) -> None:
        """See Origin."""
        if self._open is not None:
            self._open.stream.close()
            self._open, self._name = None, ""

    def _opened(self, sha256: str) -> Opened:
        if self._open is not None and self._name == sha256:
            return self._open
        self.close()
        self._open = self._shelf.open(sha256, 0, None)
        if self._open is None:
            raise self._absent(sha256)
        self._name = sha256
        return self._open

    def _absent(self, sha256: str) -> Failure:
        return Failure(
            "origin",
            f"the mirror {self._path} does not hold blob {sha256}",
            "Apply again: what is missing there is mirrored anew.",
        )

    def _cut_off(self, sha256: str, at: int) -> Failure:
        return Failure(
            "origin",
            f"the mirror's blob {sha256} ends at {at} bytes",
            f"It lies in {self._path}. Apply again: what is wrong there is mirrored anew.",
        )
