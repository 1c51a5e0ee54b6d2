"""A file that has not wholly arrived: its bytes, a journal of its good chunks, and how another process takes it over."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainctl.node.system.files import write_at
from trainctl.node.system.sharing import create, is_ours, make_directory
from trainctl.weights.exclusive import holder_name, known_dead, remove_if_dead
from trainctl.weights.mirror.disk import scratch_name, write_out

_PIECE = 2**20
_FREE = "free"


class Partial:
    """One file's directory below ``partial/``. Nobody else writes to ``data`` while this object is open."""

    def __init__(self, directory: Path, inherited: Path | None) -> None:
        self.directory = directory
        self.data = directory / "data"
        self._inherited = inherited
        self._descriptor = create(self.data, os.O_RDWR)
        self._journal = create(directory / "journal", os.O_WRONLY | os.O_APPEND)

    @classmethod
    def open(cls, parent: Path, key: str) -> Partial:
        """Take over what a dead or finished process of this user has left, else begin with a copy of what another has."""
        make_directory(parent)
        mine = own_place(parent, key)
        others = sorted(parent.glob(f"{key}.*.*"), key=_progress, reverse=True)
        free = [
            other
            for other in others
            if let_go(other.name[len(key) + 1 :].rpartition(".")[0]) and is_ours(other)
        ]
        for other in free:
            with contextlib.suppress(FileNotFoundError):
                other.rename(mine)
                for lesser in free[free.index(other) + 1 :]:
                    shutil.rmtree(lesser, ignore_errors=True)
                return cls(mine, mine)
        make_directory(mine)
        return cls(mine, others[0] if others else None)

    def inherited(self, size: int, chunk_bytes: int) -> Iterator[tuple[int, bytes, str]]:
        """What was taken over, chunk by chunk: number, bytes, and the digest they must have.

        The caller checks each, calls ``keep`` for one that is right, and stops at the first that is not.
        """
        if self._inherited is None:
            return
        with contextlib.suppress(FileNotFoundError):
            lines = _read_journal(self._inherited / "journal")
            with (self._inherited / "data").open("rb", buffering=0) as stream:
                for number, expected in enumerate(lines):
                    length = min(chunk_bytes, size - number * chunk_bytes)
                    chunk = _read(stream.fileno(), length) if length > 0 else b""
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
        if self._inherited not in (None, self.directory):
            shutil.rmtree(str(self._inherited), ignore_errors=True)

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
        make_directory(target.parent)
        self.data.replace(target)
        shutil.rmtree(self.directory, ignore_errors=True)

    def put_back(self, target: Path) -> None:
        """Give it a name that it had, as it is, unless somebody has put what belongs there meanwhile."""
        os.fchmod(self._descriptor, 0o444)
        self._close()
        with contextlib.suppress(FileExistsError):
            os.link(self.data, target)
        shutil.rmtree(self.directory, ignore_errors=True)

    def discard(self) -> None:
        """Remove it all."""
        self._close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def release(self) -> None:
        """Keep what is there for whoever comes next."""
        self._close()
        set_free(self.directory)

    def _close(self) -> None:
        for descriptor in (self._descriptor, self._journal):
            os.close(descriptor)


class Small:
    """A file of one chunk: begun anew each time, and nothing of it is kept."""

    def __init__(self, parent: Path) -> None:
        self._path = parent / scratch_name()
        self._descriptor = create(self._path, os.O_RDWR | os.O_EXCL)

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
        make_directory(target.parent)
        self._path.replace(target)

    def discard(self) -> None:
        """Remove it."""
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)

    release = discard


def own_place(parent: Path, key: str) -> Path:
    """Where this process may keep what has not wholly arrived; nobody else uses the name."""
    return parent / f"{key}.{holder_name()}.{secrets.token_hex(4)}"


def set_free(directory: Path) -> None:
    """Leave it to whoever comes next."""
    key = directory.name.partition(".")[0]
    with contextlib.suppress(OSError):
        directory.rename(directory.with_name(f"{key}.{_FREE}.{secrets.token_hex(4)}"))


class Arrived(NamedTuple):
    """How much of a file is there that isn't whole, in bytes: in chunks that needn't come again, and on the disk."""

    good: int
    laid: int


def bytes_kept(parent: Path) -> dict[str, int]:
    """By fingerprint, how much of a file lies in the best of its partials, in bytes."""
    return {key: _progress(one) for key, one in _best(parent).items()}


def arrived(parent: Path, chunk_bytes: int) -> dict[str, Arrived]:
    """By fingerprint, what the next transfer takes over of the best of a file's partials."""
    return {
        key: Arrived(min(_noted(one) * chunk_bytes, laid), laid)
        for key, one in _best(parent).items()
        if (laid := _progress(one))
    }


def _best(parent: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for one in sorted(parent.glob("*.*.*"), key=_progress):
        found[one.name.partition(".")[0]] = one
    return found


def _noted(directory: Path) -> int:
    try:
        return len(_read_journal(directory / "journal"))
    except OSError:
        return 0


def sweep(parent: Path) -> None:
    """Remove what dead processes left and nobody can use. Partials with data stay: they are worth resuming."""
    for path in parent.glob("tmp.*"):
        if known_dead(path.name[len("tmp.") :].rpartition(".")[0]):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    for path in parent.glob("*.lease"):
        remove_if_dead(path)
    for path in parent.glob("*.*.*"):
        holder = path.name.partition(".")[2].rpartition(".")[0]
        if path.is_dir() and not (path / "data").exists() and let_go(holder):
            shutil.rmtree(path, ignore_errors=True)


def let_go(holder: str) -> bool:
    """Whether what bears that holder's name may be taken over."""
    return holder == _FREE or known_dead(holder)


def _progress(directory: Path) -> int:
    """What its data takes on the disk: before chunks that came out of turn there are holes."""
    try:
        status = (directory / "data").stat()
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
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            digest = str(json.loads(line)["sha256"])
        except (ValueError, KeyError, TypeError):
            break
        if line != _line(len(digests), digest):
            break
        digests.append(digest)
    return digests
