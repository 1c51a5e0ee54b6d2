"""Where a server finds the contents that it serves."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any, BinaryIO, Callable, Iterable, Iterator, List, NamedTuple, Optional

from trainctl.base.below import open_regular
from trainctl.node.content.packs import Packs
from trainctl.node.system import layout
from trainctl.store import keys

_READABLE = {"blobs", "slices", "packs"}
"""The objects that nodes read. Nothing else of a mirror is served."""


class Opened(NamedTuple):
    """A content that is open for reading: its first bytes lie from ``start`` to ``end`` of the stream; ``whole``: these are all."""

    stream: BinaryIO
    start: int
    end: int
    whole: bool = True

    @property
    def size(self) -> int:
        """How many of its bytes are there."""
        return self.end - self.start

    @classmethod
    def file(cls, stream: BinaryIO) -> Opened:
        """A whole content in a file of its own."""
        return cls(stream, 0, os.fstat(stream.fileno()).st_size)


class Shelf:
    """Where a server finds contents."""

    def open(
        self, sha256: str, offset: int, length: Optional[int], near: Optional[Opened] = None
    ) -> Optional[Opened]:
        """The content, if some of those bytes from the first on are here; with ``length`` None, if all there are.

        ``near`` is what was opened before; its stream is used again for a content that lies in the same file.
        """
        raise NotImplementedError

    def coming(self, sha256: str) -> bool:
        """Whether somebody alive is bringing the content here."""
        raise NotImplementedError

    def open_object(self, key: str) -> Optional[Opened]:
        """An object of a mirror, which the server of a node's cache doesn't have."""
        return None


class ObjectShelf(Shelf):
    """A mirror's content and its indexes, by key, in a directory."""

    def __init__(self, path: Any) -> None:
        self._root = str(layout.absolute(str(path), "mirror"))

    def open(
        self, sha256: str, offset: int, length: Optional[int], near: Optional[Opened] = None
    ) -> Optional[Opened]:
        """See Shelf. Content is in objects only."""
        return None

    def coming(self, sha256: str) -> bool:
        """See Shelf."""
        return False

    def open_object(self, key: str) -> Optional[Opened]:
        """See Shelf."""
        is_readable = keys.is_own(key) and key.partition("/")[0] in _READABLE
        stream = open_blob(f"{self._root}/{key}") if is_readable else None
        return Opened.file(stream) if stream else None


OpenNear = Callable[[str, Optional[Opened]], Optional[Opened]]
"""Opens a content, or finds it in what is open already."""


@contextlib.contextmanager
def opened_together(
    open_near: OpenNear, digests: Iterable[str]
) -> Iterator[List[Optional[Opened]]]:
    """Several contents, open for as long as the block lasts; None for each that is not there."""
    found: List[Optional[Opened]] = []
    near: Optional[Opened] = None
    with contextlib.ExitStack() as stack:
        for digest in digests:
            one = open_near(digest, near)
            if one is not None:
                if near is None or one.stream is not near.stream:
                    stack.enter_context(one.stream)
                near = one
            found.append(one)
        yield found


class MirrorShelf(Shelf):
    """A mirror in a directory: what is there is whole, and nothing is on its way."""

    def __init__(self, path: Any) -> None:
        root = layout.absolute(str(path), "mirror")
        self._blobs = str(root / "blobs" / "sha256")
        self._packs = Packs(root / "packs")

    def open(
        self, sha256: str, offset: int, length: Optional[int], near: Optional[Opened] = None
    ) -> Optional[Opened]:
        """See Shelf."""
        return self.open_near(sha256, near)

    def open_near(self, sha256: str, near: Optional[Opened]) -> Optional[Opened]:
        """The content, with the stream of ``near`` if it lies in that file."""
        found = self._packed(sha256, near)
        if found is not None:
            return found
        stream = self.alone(sha256)
        if stream is not None:
            return Opened.file(stream)
        self._packs.refresh()  # packs come, and go when their contents lie in others
        return self._packed(sha256, near)

    def alone(self, sha256: str) -> Optional[BinaryIO]:
        """The content as a file of its own."""
        return open_blob(f"{self._blobs}/{sha256[:2]}/{sha256}")

    def _packed(self, sha256: str, near: Optional[Opened]) -> Optional[Opened]:
        found = self._packs.find(sha256)
        if found is None:
            return None
        again = near is not None and near.stream.name == found.path
        stream = near.stream if near is not None and again else open_blob(found.path)
        if stream is None:
            return None
        return Opened(stream, found.offset, found.offset + found.length)

    def coming(self, sha256: str) -> bool:
        """See Shelf."""
        return False


def open_blob(name: str) -> Optional[BinaryIO]:
    """The file, opened for reading; None if there is none."""
    try:
        return io.FileIO(name, opener=open_regular)
    except FileNotFoundError:
        return None
