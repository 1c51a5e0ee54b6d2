"""A file that has not wholly arrived: its bytes, a journal of its good chunks, and how another process takes it over."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainctl.base import below
from trainctl.base.exclusive import holder_name, known_dead, remove_if_dead
from trainctl.base.files import write_at
from trainctl.base.sharing import is_ours
from trainctl.weights.mirror.disk import scratch_name, write_out
from trainctl.weights.mirror.layout import Entry, Layout

_PIECE = 2**20
_FREE = "free"
_FILES = ("index", "data", "journal")


class Partial:
    """One file's directory below ``partial/``. Nobody else writes to ``data`` while this object is open."""

    def __init__(self, directory: Path, inherited: Path | None) -> None:
        self.directory = directory
        self.data = directory / "data"
        self._root = directory.parent.parent
        self._inherited = inherited
        self._descriptor = below.create(self._root, self.data, os.O_RDWR)
        self._journal = below.create(self._root, directory / "journal", os.O_WRONLY | os.O_APPEND)

    @classmethod
    def open(cls, layout: Layout, key: str) -> Partial:
        """Take over what a dead or finished process of this user has left, else begin with a copy of what another has."""
        mine = own_place(layout.partial, key)
        others = sorted(layout.partials(key), key=_progress, reverse=True)
        free = [other for other in others if let_go(holder_of(other)) and may_be_taken(other)]
        for other in free:
            with contextlib.suppress(FileNotFoundError):
                below.move(layout.root, other, mine)
                for lesser in free[free.index(other) + 1 :]:
                    discard(lesser)
                return cls(mine, mine)
        below.make_directory(layout.root, mine)
        return cls(mine, others[0] if others else None)

    def inherited(self, size: int, chunk_bytes: int) -> Iterator[tuple[int, bytes, str]]:
        """What was taken over, chunk by chunk: number, bytes, and the digest they must have.

        The caller checks each, calls ``keep`` for one that is right, and stops at the first that is not.
        """
        if self._inherited is None:
            return
        with contextlib.suppress(FileNotFoundError):
            lines = _read_journal(self._inherited / "journal")
            data = below.open_file(self._inherited / "data")
            if data is None:
                return
            with os.fdopen(data, "rb", buffering=0):
                for number, expected in enumerate(lines):
                    length = min(chunk_bytes, size - number * chunk_bytes)
                    chunk = _read(data, length) if length > 0 else b""
                    if length <= 0 or len(chunk) != length:
                        return
                    yield number, chunk, expected

    def keep(self, number: int, offset: int, chunk: bytes, digest: str) -> None:
        """Put a good chunk at its place; nothing to do where it already is there."""
        if self._inherited != self.directory:
            self.write(offset, chunk)
            self.note(number, digest)

    def begin(self, offset: int, digests: list[str]) -> None:
        """Cut the data and the journal to the chunks that were kept; from here on bytes are new."""
        os.ftruncate(self._descriptor, offset)
        os.ftruncate(self._journal, sum(len(_line(*kept)) for kept in enumerate(digests)))
        if self._inherited is not None and self._inherited != self.directory:
            discard(self._inherited)

    def write(self, offset: int, piece: bytes | memoryview) -> None:
        """Put bytes at their place."""
        write_at(self._descriptor, offset, piece)
        if len(piece) > _PIECE:
            write_out(self._descriptor, offset, len(piece))

    def note(self, number: int, digest: str) -> None:
        """Write down that a chunk is there. A line cut by a crash is no line."""
        os.write(self._journal, _line(number, digest))

    def publish(self, target: Path) -> None:
        """Give the whole file its final name, durably and read-only."""
        os.fchmod(self._descriptor, 0o444)
        os.fsync(self._descriptor)
        self._close()
        below.make_directory(self._root, target.parent, durable=True)
        below.move(self._root, self.data, target)
        discard(self.directory)

    def put_back(self, target: Path) -> None:
        """Give it a name that it had, as it is, unless somebody has put what belongs there meanwhile."""
        os.fchmod(self._descriptor, 0o444)
        self._close()
        with contextlib.suppress(FileExistsError):
            below.link(self._root, self.data, target)
        discard(self.directory)

    def discard(self) -> None:
        """Remove it all."""
        self._close()
        discard(self.directory)

    def release(self) -> None:
        """Keep what is there for whoever comes next."""
        self._close()
        set_free(self.directory)

    def _close(self) -> None:
        for descriptor in (self._descriptor, self._journal):
            os.close(descriptor)


class Small:
    """A file of one chunk: begun anew each time, and nothing of it is kept."""

    def __init__(self, layout: Layout) -> None:
        self._root = layout.root
        self._path = layout.partial / scratch_name()
        self._descriptor = below.create(self._root, self._path, os.O_RDWR | os.O_EXCL)

    def inherited(self, size: int, chunk_bytes: int) -> Iterator[tuple[int, bytes, str]]:
        """Nothing ever is."""
        return iter(())

    def keep(self, number: int, offset: int, chunk: bytes, digest: str) -> None:
        """Nothing is taken over."""

    def begin(self, offset: int, digests: list[str]) -> None:
        """Nothing was taken over."""

    def note(self, number: int, digest: str) -> None:
        """Nothing is remembered."""

    def write(self, offset: int, piece: bytes | memoryview) -> None:
        """Put bytes at their place."""
        write_at(self._descriptor, offset, piece)

    def publish(self, target: Path) -> None:
        """Give the whole file its final name, durably and read-only."""
        os.fchmod(self._descriptor, 0o444)
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        below.make_directory(self._root, target.parent, durable=True)
        below.move(self._root, self._path, target)

    def discard(self) -> None:
        """Remove it."""
        os.close(self._descriptor)
        below.remove(self._root, self._path)

    release = discard


def own_place(parent: Path, key: str) -> Path:
    """Where this process may keep what has not wholly arrived; nobody else uses the name."""
    return parent / f"{key}.{holder_name()}.{secrets.token_hex(4)}"


def set_free(directory: Path) -> None:
    """Leave it to whoever comes next."""
    key = directory.name.partition(".")[0]
    with contextlib.suppress(OSError):
        freed = directory.with_name(f"{key}.{_FREE}.{secrets.token_hex(4)}")
        below.move(directory.parent.parent, directory, freed)


def discard(directory: Path) -> int:
    """Remove what lies in the place of a transfer that isn't whole, as far as this user may; the bytes freed."""
    with contextlib.suppress(OSError):
        return below.remove_directory(directory.parent.parent, directory, _FILES)
    return 0


class Arrived(NamedTuple):
    """How much of a file is there that isn't whole, in bytes: in chunks that needn't come again, and on the disk."""

    good: int
    laid: int


def bytes_kept(layout: Layout) -> dict[str, int]:
    """By fingerprint, how much of a file lies in the best of its partials, in bytes."""
    return {key: _progress(one) for key, one in _best(layout).items()}


def arrived(layout: Layout) -> dict[str, Arrived]:
    """By fingerprint, what the next transfer takes over of the best of a file's partials."""
    return {
        key: Arrived(min(_noted(one) * layout.chunk_bytes, laid), laid)
        for key, one in _best(layout).items()
        if (laid := _progress(one))
    }


def _best(layout: Layout) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for one in sorted(layout.partials(), key=_progress):
        found[one.name.partition(".")[0]] = one
    return found


def _noted(directory: Path) -> int:
    try:
        return len(_read_journal(directory / "journal"))
    except OSError:
        return 0


def sweep(layout: Layout) -> None:
    """Remove what dead processes left and nobody can use. Partials with data stay: they are worth resuming."""
    for one in layout.inside("partial"):
        if one.name.endswith(".lease"):
            remove_if_dead(one.path)
        elif one.path.name.startswith("tmp."):
            if known_dead(holder_of(one.path)):
                _swept(layout, one)
        elif let_go(holder_of(one.path)) and below.file_size(f"{one.path}/data") is None:
            discard(one.path)


def _swept(layout: Layout, one: Entry) -> None:
    if one.is_directory:
        discard(one.path)
    else:
        below.remove(layout.root, one.path)


def holder_of(path: Path) -> str:
    """Whose name it bears."""
    return path.name.partition(".")[2].rpartition(".")[0]


def let_go(holder: str) -> bool:
    """Whether what bears that holder's name may be taken over."""
    return holder == _FREE or known_dead(holder)


def may_be_taken(directory: Path) -> bool:
    """Whether a partial is this user's, and what will be written to are files that are nothing else besides."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), below.opened(
        directory.parent.parent, directory
    ) as within:
        for name in _FILES:
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=within, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                    return False
        return is_ours(within)
    return False


def _progress(directory: Path) -> int:
    """What its data takes on the disk: before chunks that came out of turn there are holes."""
    try:
        status = (directory / "data").lstat()
    except OSError:
        return 0
    return min(status.st_size, status.st_blocks * 512)


def _read(descriptor: int, length: int) -> bytes:
    parts = []
    while length and (part := os.read(descriptor, min(length, _PIECE))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _line(number: int, digest: str) -> bytes:
    return json.dumps({"chunk": number, "sha256": digest}).encode() + b"\n"


def _read_journal(path: Path) -> list[str]:
    digests: list[str] = []
    for line in below.read(path.parent.parent.parent, path).splitlines(keepends=True):
        try:
            digest = str(json.loads(line)["sha256"])
        except (ValueError, KeyError, TypeError):
            break
        if line != _line(len(digests), digest):
            break
        digests.append(digest)
    return digests
