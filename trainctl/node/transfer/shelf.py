"""Where a server finds the contents that it serves."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, NamedTuple, Optional

from trainctl.node.system import layout


class Opened(NamedTuple):
    """A content that is open for reading; ``end``: up to where it may be read, None for one that is whole."""

    stream: BinaryIO
    end: Optional[int] = None


class Shelf:
    """Where a server finds contents."""

    def open(self, sha256: str, offset: int, length: Optional[int]) -> Optional[Opened]:
        """The content, if some of those bytes from the first on are here; with ``length`` None, if all there are."""
        raise NotImplementedError

    def coming(self, sha256: str) -> bool:
        """Whether somebody alive is bringing the content here."""
        raise NotImplementedError


class MirrorShelf(Shelf):
    """A mirror in a directory: what is there is whole, and nothing is on its way."""

    def __init__(self, path: Any) -> None:
        self._blobs = str(layout.absolute(str(path), "mirror") / "blobs" / "sha256")

    def open(self, sha256: str, offset: int, length: Optional[int]) -> Optional[Opened]:
        """See Shelf."""
        found = open_blob(f"{self._blobs}/{sha256[:2]}/{sha256}")
        return Opened(found) if found is not None else None

    def coming(self, sha256: str) -> bool:
        """See Shelf."""
        return False


def open_blob(name: str) -> Optional[BinaryIO]:
    """The file, opened for reading; None if there is none."""
    try:
        return io.FileIO(name)
    except FileNotFoundError:
        return None
