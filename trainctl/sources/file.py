"""``file:`` sources: a directory or a file of this machine, known by its metadata."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trainctl.base.filesystem.safe_path import DENIED, display_path, unusable_file
from trainctl.base.listing import ResolvedSource, SourceFile, sort_files
from trainctl.errors import SourceDenied, SourceError, SourceMismatch, SourceNotFound
from trainctl.model.source_uri import parse_source
from trainctl.plugin_api.sources import SourceCredential

_BUFFER_BYTES = 2**20
_EFFECTIVE = os.access in os.supports_effective_ids


class FileSource:
    """Reads a directory or a file. The URI must be absolute: ``SourceUri.within`` makes it so."""

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """Every file below the path, links inside it followed; no revision of its own."""
        root = Path(parse_source(uri).location)
        files: Iterator[SourceFile] = _walk(uri, root)
        with _file_errors(uri, root):
            if not stat.S_ISDIR(root.stat().st_mode):
                files = iter([_file(str(root), root.name)])
        return ResolvedSource(uri, "", sort_files(files))

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """There is none."""
        return None

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """No other machine sees the file."""
        return None

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        """See WeightSource."""
        return True

    @contextmanager
    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> Iterator[Iterator[bytes]]:
        """The file's bytes; SourceMismatch when it changes before or while it is read."""
        root = Path(parse_source(resolved.source).location)
        path = root / file.path if root.is_dir() else root
        with _file_errors(resolved.source, path), path.open("rb", buffering=0) as stream:
            descriptor = stream.fileno()
            _check_unchanged(resolved.source, file, os.fstat(descriptor))
            stream.seek(offset)
            yield _pieces(resolved.source, file, descriptor, offset)


def _pieces(source: str, file: SourceFile, descriptor: int, offset: int) -> Iterator[bytes]:
    while offset < file.size:
        piece = os.read(descriptor, min(_BUFFER_BYTES, file.size - offset))
        if not piece:
            break
        offset += len(piece)
        yield piece
    _check_unchanged(source, file, os.fstat(descriptor))


def _check_unchanged(source: str, file: SourceFile, status: os.stat_result) -> None:
    if (status.st_size, _validator(status)) != (file.size, file.validator):
        was = f"{file.size} bytes before, {status.st_size} now"
        what = was if file.size != status.st_size else "same size, different time or inode"
        raise SourceMismatch(
            f"{source}: {display_path(file.path)} has changed since it was resolved ({what})",
            "Plan and apply again, and don't write to the directory meanwhile.",
        )


class _SourceDirectory(NamedTuple):
    """One below the root: ``prefix`` is its name there with a ``/`` behind it, and ``real`` where it is when links are followed."""

    prefix: str
    real: str


def _walk(source: str, root: Path) -> Iterator[SourceFile]:
    """Every file below the root."""
    top = _SourceDirectory("", os.path.realpath(root))
    above, pending = [top.real], [iter((top,))]
    while pending:
        directory = next(pending[-1], None)
        if directory is None:
            pending.pop()
            above.pop()
            continue
        below: list[_SourceDirectory] = []
        above[-1] = directory.real
        yield from _in_directory(source, root, directory.prefix, above, below)
        pending.append(iter(below))
        above.append("")


def _in_directory(
    source: str, root: Path, prefix: str, above: Sequence[str], below: list[_SourceDirectory]
) -> Iterator[SourceFile]:
    """Its files; ``below`` takes the directories in it. ``above`` is where it and those above it are."""
    directory = root / prefix
    with _file_errors(source, directory):
        try:
            entries = os.scandir(directory)
        except PermissionError:
            if not prefix:
                raise
            yield unusable_file(prefix, DENIED)
            return
        with entries:
            for entry in entries:
                found = _classify_entry(entry, f"{prefix}{entry.name}", above)
                if isinstance(found, _SourceDirectory):
                    below.append(found)
                else:
                    yield found


def _classify_entry(
    entry: os.DirEntry[str], name: str, above: Sequence[str]
) -> SourceFile | _SourceDirectory:
    """An unusable entry is an error only if the patterns select it."""
    try:
        if not entry.is_symlink():
            if entry.is_dir():
                return _SourceDirectory(f"{name}/", f"{above[-1].rstrip('/')}/{entry.name}")
            return _file(entry.path, name)
        target = os.path.realpath(entry.path)
        problem = _link_problem(target, above)
        if problem is not None:
            return unusable_file(f"{name}/" if Path(target).is_dir() else name, problem)
        return _SourceDirectory(f"{name}/", target) if entry.is_dir() else _file(entry.path, name)
    except PermissionError:
        return unusable_file(name, DENIED)


def _link_problem(target: str, above: Sequence[str]) -> str | None:
    if target != above[0] and not target.startswith(above[0].rstrip("/") + "/"):
        return f"is a symlink that leaves the directory, to {display_path(target)}"
    if target in above:
        return "is a symlink to a parent directory"
    return None if Path(target).exists() else "is a broken symlink"


def _file(path: str, name: str) -> SourceFile:
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        return unusable_file(name, "is neither a file nor a directory")
    if not os.access(path, os.R_OK, effective_ids=_EFFECTIVE):
        return unusable_file(name, DENIED)
    return SourceFile(name, status.st_size, _validator(status))


def _validator(status: os.stat_result) -> str:
    return f"mtime:{status.st_mtime_ns}:{status.st_ino}"


@contextmanager
def _file_errors(source: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = display_path(os.fsdecode(error.filename or path))
        raise SourceNotFound(
            f"{source}: {missing} not found", "Check the path, or create it."
        ) from None
    except PermissionError as error:
        raise SourceDenied(
            f"{source}: permission denied: {display_path(os.fsdecode(error.filename or path))}",
            "Give this user read access.",
        ) from None
    except OSError as error:
        raise SourceError(
            f"{source}: {display_path(str(path))}: {error.strerror or error}"
        ) from None
