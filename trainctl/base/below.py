"""What lies below a directory that others may write to as well: reached step by step, and never through a link.

Who follows a path there does so with rights of its own, wherever a link leads that somebody else put in its way. So each step is opened
in the one before it, and what is done is done in what was opened: whoever turns a directory into a link meanwhile changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Callable, Iterable, Iterator, Optional, Tuple, Union

from trainctl.base.files import PRIVATE_DIRECTORY, PRIVATE_FILE
from trainctl.base.sharing import DIRECTORY, FILE, is_for_group

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 10
_Make = Callable[[int, str], int]
"""Makes a directory in an open one, and opens it."""
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""What is said where there is nothing, a link, or a socket."""


@contextlib.contextmanager
def opened(root: Path, directory: Path) -> Iterator[int]:
    """A descriptor of a directory below ``root``, or of that itself. NotADirectoryError where something else is on the way, be it a link."""
    descriptor = _open(root, directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(root: Path, directory: Path, *, durable: bool = False) -> Path:
    """Make a directory, and what is missing of the way to it from ``root`` on, each for whom the one above it is for; ``durable``: a power cut leaves it there."""
    make = _made_durable if durable else _made
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):  # somebody removes what is empty
            os.close(_open(root, directory, make))
            return directory
    os.close(_open(root, directory, make))
    return directory


def entries(root: Path, directory: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a directory; nothing where there is none. They can be asked for as long as the iteration goes on, and have no path."""
    try:
        descriptor = _open(root, directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        with os.scandir(descriptor) as found:
            yield from found
    finally:
        os.close(descriptor)


def create(root: Path, path: Path, flags: int) -> int:
    """Open a regular file, which need not be there yet and is this user's. OSError (ELOOP) where a link is in its place."""
    more = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with opened(root, path.parent) as within:
        descriptor = os.open(path.name, flags | more, PRIVATE_FILE, dir_fd=within)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EEXIST, "is in the way and is no file", str(path))
        if is_for_group(os.fstat(within)):
            os.fchmod(descriptor, FILE)
    return descriptor


def open_file(path: Union[str, Path], within: Optional[int] = None) -> Optional[int]:
    """A descriptor to read a regular file by; None where there is none under that very name."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, dir_fd=within)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def open_below(root: Path, path: Path) -> Optional[int]:
    """The same of one below ``root``, through no link."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), opened(root, path.parent) as within:  # fmt: skip
        return open_file(path.name, within)
    return None


def open_regular(path: str, flags: int = 0) -> int:
    """``open_file``, as an opener of files; FileNotFoundError where there is none."""
    descriptor = open_file(path)
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return descriptor


def file_size(path: str) -> Optional[int]:
    """How large a regular file is; None where there is none under that very name."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def read(root: Path, path: Path) -> bytes:
    """A small file's content. FileNotFoundError where there is no regular file."""
    descriptor = open_below(root, path)
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


def move(root: Path, path: Path, target: Path) -> None:
    """Rename what lies at a path, were it a link."""
    with opened(root, path.parent) as here, opened(root, target.parent) as there, _named(path):
        os.rename(path.name, target.name, src_dir_fd=here, dst_dir_fd=there)


def link(root: Path, path: Path, target: Path) -> None:
    """Give a file another name. FileExistsError where there is something."""
    with opened(root, path.parent) as here, opened(root, target.parent) as there, _named(target):
        os.link(path.name, target.name, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)


def touch(root: Path, path: Path, times: Optional[Tuple[float, float]] = None) -> None:
    """Set the times of what lies at a path, to now unless others are given."""
    with opened(root, path.parent) as within, _named(path):
        os.utime(path.name, times, dir_fd=within, follow_symlinks=False)


def remove(root: Path, path: Path) -> int:
    """Remove a file, or a link in its place; the bytes freed. A directory stays."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), opened(root, path.parent) as within:  # fmt: skip
        return _unlink(within, path.name)
    return 0


def remove_directory(root: Path, path: Path, files: Iterable[str]) -> int:
    """Remove these files of a directory, in this order, and then itself, unless anything else is in it; the bytes freed."""
    freed = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with opened(root, path) as within:
            for name in files:
                freed += _unlink(within, name)
        remove_empty(root, path)
    return freed


def remove_empty(root: Path, path: Path) -> bool:
    """Remove a directory if nothing is in it; whether there is none any more."""
    try:
        with opened(root, path.parent) as within, _named(path):
            os.rmdir(path.name, dir_fd=within)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def _unlink(within: int, name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=within, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=within)
            return found.st_size
    return 0


def _open(root: Path, directory: Path, make: Optional[_Make] = None) -> int:
    with _named(directory):
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    step = root
    for name in directory.relative_to(root).parts:
        step = step / name
        try:
            with _named(step):
                deeper = _step(descriptor, name, make)
        finally:
            os.close(descriptor)
        descriptor = deeper
    return descriptor


def _step(descriptor: int, name: str, make: Optional[_Make]) -> int:
    if name == "..":
        raise NotADirectoryError(errno.ENOTDIR, "leads out of its directory", name)
    try:
        return os.open(name, _STEP, dir_fd=descriptor)
    except FileNotFoundError:
        if make is None:
            raise
    with contextlib.suppress(FileExistsError):
        return make(descriptor, name)
    return os.open(name, _STEP, dir_fd=descriptor)


def _made(descriptor: int, name: str) -> int:
    os.mkdir(name, PRIVATE_DIRECTORY, dir_fd=descriptor)
    made = os.open(name, _STEP, dir_fd=descriptor)
    if is_for_group(os.fstat(descriptor)):
        os.fchmod(made, DIRECTORY)
    return made


def _made_durable(descriptor: int, name: str) -> int:
    made = _made(descriptor, name)
    os.fsync(descriptor)
    return made


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors name the whole path, and a link in a directory's place is one and the same error everywhere."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, "is a link", str(path)) from None
        raise
