"""``file:`` sources: a directory or a file, identified by its metadata, or by ``by_content``."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.base.filesystem.files import read_json, write_volatile
from trainctl.base.filesystem.safe_path import DENIED, display_path, unusable_file
from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import ResolvedSource, SourceFile, sort_files
from trainctl.base.parallel import each
from trainctl.errors import SourceDenied, SourceError, SourceMismatch, SourceNotFound
from trainctl.model.source_uri import parse_source

if TYPE_CHECKING:
    from trainctl.plugin_api.sources import SourceCredential

_BUFFER_BYTES = 2**20
_HASHING_THREADS = 4  # hashlib releases the lock; more threads wait for the disk
_SETTLED_NS = 2 * 10**9
"""A file modified more recently may change again without another time: it isn't remembered."""
_EFFECTIVE = os.access in os.supports_effective_ids


class FileSource:
    """A directory or a file; the URI must be absolute, see ``SourceUri.within``."""

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """Return every file below the path, following symlinks inside it."""
        root = Path(parse_source(uri).location)
        files: Iterator[SourceFile] = _walk(uri, root)
        with _file_errors(uri, root):
            if not stat.S_ISDIR(root.stat().st_mode):
                files = iter([_file(str(root), root.name)])
        return ResolvedSource(uri, "", sort_files(files))

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """Return None, as a path has no server."""
        return None

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """Return None, as no other machine sees the file."""
        return None

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        return True

    @contextmanager
    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> Iterator[Iterator[bytes]]:
        """Open a file; SourceMismatch if it changes before or while it is read."""
        root = Path(parse_source(resolved.source).location)
        path = root / file.path if root.is_dir() else root
        with _file_errors(resolved.source, path), path.open("rb", buffering=0) as stream:
            descriptor = stream.fileno()
            _check_unchanged(resolved.source, file, os.fstat(descriptor))
            stream.seek(offset)
            yield _iter_bytes(resolved.source, file, descriptor, offset)


def _iter_bytes(source: str, file: SourceFile, descriptor: int, offset: int) -> Iterator[bytes]:
    while offset < file.size:
        data = os.read(descriptor, min(_BUFFER_BYTES, file.size - offset))
        if not data:
            break
        offset += len(data)
        yield data
    _check_unchanged(source, file, os.fstat(descriptor))


def _check_unchanged(source: str, file: SourceFile, status: os.stat_result) -> None:
    # The reader compares a sha256.
    validator = file.validator if file.sha256 else _validator(status)
    if (status.st_size, validator) != (file.size, file.validator):
        change = "same size, different time or inode"
        if file.size != status.st_size:
            change = f"{file.size} bytes before, {status.st_size} now"
        raise SourceMismatch(
            f"{source}: {display_path(file.path)} has changed since it was resolved ({change})",
            "Plan and apply again, and don't write to the directory meanwhile.",
        )


class _SourceDirectory(NamedTuple):
    """A directory: its path below the root with a ``/``, and its real path."""

    prefix: str
    real: str


def _walk(source: str, root: Path) -> Iterator[SourceFile]:
    """Yield every file below the root."""
    top = _SourceDirectory("", os.path.realpath(root))
    above, pending = [top.real], [iter((top,))]
    while pending:
        directory = next(pending[-1], None)
        if directory is None:
            pending.pop()
            above.pop()
            continue
        below: list[_SourceDirectory] = []
        prefix, above[-1] = directory.prefix, directory.real
        with _file_errors(source, root / prefix):
            try:
                entries = os.scandir(root / prefix)
            except PermissionError:
                if not prefix:
                    raise
                yield unusable_file(prefix, DENIED)
            else:
                with entries:
                    for entry in entries:
                        item = _classify_entry(entry, f"{prefix}{entry.name}", above)
                        if isinstance(item, _SourceDirectory):
                            below.append(item)
                        else:
                            yield item
        pending.append(iter(below))
        above.append("")


def _classify_entry(
    entry: os.DirEntry[str], name: str, above: Sequence[str]
) -> SourceFile | _SourceDirectory:
    """Convert an entry; an unusable one is an error only if patterns select it."""
    try:
        if not entry.is_symlink():
            if entry.is_dir():
                return _SourceDirectory(f"{name}/", f"{above[-1].rstrip('/')}/{entry.name}")
            return _file(entry.path, name)
        target, root, problem = os.path.realpath(entry.path), above[0].rstrip("/"), ""
        repository = root.rpartition("/snapshots/")[0]
        is_cached = Path(repository).name.startswith(("models--", "datasets--"))
        # the Hub's cache keeps the files of snapshots in its repository
        inside = (f"{root}/", f"{repository}/blobs/") if is_cached else (f"{root}/",)
        if not f"{target}/".startswith(inside):
            problem = f"is a symlink that leaves the directory, to {display_path(target)}"
        elif target in above:
            problem = "is a symlink to a parent directory"
        elif not Path(target).exists():
            problem = "is a broken symlink"
        if problem:
            return unusable_file(f"{name}/" if Path(target).is_dir() else name, problem)
        return _SourceDirectory(f"{name}/", target) if entry.is_dir() else _file(entry.path, name)
    except PermissionError:
        return unusable_file(name, DENIED)


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


def by_content(resolved: ResolvedSource, directory: Path, memory: Path | None) -> ResolvedSource:
    """Identify files by sha256 if the source is inside ``directory``; return others unchanged.

    ``memory`` is a directory that may be deleted at any time. Raises SourceError.
    """
    root = Path(parse_source(resolved.source).location)
    if not root.resolve().is_relative_to(directory.resolve()):
        return resolved
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    known: dict[str, str] = {}
    if memory is not None:
        with suppress(OSError):
            known = read_json(memory / f"{name}.json") or {}
    before = dict(known)

    def identify(file: SourceFile) -> SourceFile:
        path = root / file.path if root.is_dir() else root
        try:
            status = path.stat()
            stamp = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino} "
            stored = known.get(file.path, "")
            if stored.startswith(stamp):
                return SourceFile(file.path, file.size, f"sha256:{stored.removeprefix(stamp)}")
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            what = display_path(str(path))
            raise SourceError(f"{resolved.source}: {what}: {error.strerror or error}") from None
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
            known[file.path] = stamp + sha256
        return SourceFile(file.path, file.size, f"sha256:{sha256}")

    files = tuple(each(identify, resolved.files, _HASHING_THREADS))
    if memory is not None and known != before:
        with suppress(OSError):
            write_volatile(memory / f"{name}.json", known)
    return replace(resolved, files=files)
