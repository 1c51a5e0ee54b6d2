"""A private mount namespace in which weights lie where the job wants them, and nowhere else. See DESIGN.md, "Mounts"."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import make_directory, remove_tree
from trainctl.base.system import syscalls
from trainctl.base.system.syscalls import (
    MS_BIND,
    MS_MOVE,
    MS_PRIVATE,
    MS_REC,
    MS_SLAVE,
    MS_UNBINDABLE,
)
from trainctl.node.system.layout import is_inside

_MAX_ENTRIES = 2000
_KERNEL = (Path("/proc"), Path("/sys"), Path("/dev"))


class Mount(NamedTuple):
    """A directory that is to be seen at another path, by the job only."""

    target: str
    source: str
    read_only: bool = True


class MountSupport(NamedTuple):
    """Whether private mounts work here, and how or why not."""

    possible: bool
    detail: str


def why_blocked(target: str, kept: Sequence[Path]) -> Optional[str]:
    """Why nothing can be mounted there; None if nothing is known against it. ``kept``: what must stay visible."""
    path = Path(target)
    if not path.is_absolute() or ".." in path.parts or path == Path("/"):
        return "a mount is an absolute path without '..' below /"
    real = Path(os.path.realpath(target))
    if any(is_inside(real, one) for one in _KERNEL):
        return "it lies where the kernel shows itself"
    if any(is_inside(one, real) for one in kept):
        return f"it would hide {next(one for one in kept if is_inside(one, real))}"
    if os.path.lexists(target):
        return None if path.is_dir() else "a file is in the way"
    return _rebuild_problem(_existing_ancestor(path)[0])


def _rebuild_problem(ancestor: Path) -> Optional[str]:
    if not ancestor.is_dir():
        return f"{ancestor} is not a directory"
    try:
        count = sum(1 for _ in ancestor.iterdir())
    except PermissionError:
        return f"{ancestor} can't be listed by user {os.geteuid()}; make the directory there once"
    if count > _MAX_ENTRIES:
        return f"{ancestor} has {count} entries; make the directory there once"
    return None


def enter_namespace(mounts: Sequence[Mount], view: Path, hidden: Optional[Path]) -> None:
    """Give this process, which must have a single thread, its own mounts.

    ``view`` is an empty directory on disk for what has to be rebuilt; ``hidden`` is covered by an empty directory.
    OSError if the kernel does not let us.
    """
    _unshare_mounts()
    syscalls.mount(None, "/", None, MS_REC | MS_SLAVE)
    groups: Dict[Path, List[Tuple[Mount, Path]]] = {}
    for mount in mounts:
        if Path(mount.target).is_dir():
            _bind(mount, mount.target)
        else:
            ancestor, rest = _existing_ancestor(Path(mount.target))
            groups.setdefault(ancestor, []).append((mount, rest))
    for number, ancestor in enumerate(sorted(groups, key=lambda one: -len(one.parts))):
        stage = make_directory(view / str(number))
        _rebuild(ancestor, groups[ancestor], stage)
    if hidden is not None and hidden.is_dir():
        flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("none", str(hidden), "tmpfs", flags, "size=4k,mode=0555")


@functools.lru_cache(maxsize=None)
def private_mounts(within: Optional[Path] = None) -> MountSupport:
    """Try, in a short-lived child, whether a mount below a new directory of ``/`` can be made here."""
    return try_mounts(["/.trainctl-probe/mount"], within)


def try_mounts(targets: Sequence[str], within: Optional[Path] = None) -> MountSupport:
    """Really make read-only mounts at the targets, in a short-lived child, and look at them from within.

    ``within`` is a directory for what the attempt needs on disk; it is removed, but for a kill just then.
    """
    scratch = Path(tempfile.mkdtemp(prefix="trainctl-probe-", dir=within and str(within)))
    try:
        source = make_directory(scratch / "source")
        (source / "seen").touch()
        mounts = [Mount(target, str(source)) for target in targets]
        problem = _in_child(mounts, make_directory(scratch / "view"))
    finally:
        remove_tree(scratch)
    if problem:
        return MountSupport(False, problem)
    way = "as root" if os.geteuid() == 0 else "in a user namespace"
    return MountSupport(True, f"private mounts work {way}")


def _in_child(mounts: Sequence[Mount], view: Path) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        problem = "the attempt died"
        try:
            os.close(reader)
            enter_namespace(mounts, view, None)
            problem = _check_in_namespace(mounts)
        except OSError as error:
            problem = f"{error.strerror} ({error.filename})"
        finally:
            os.write(writer, problem.encode()[:4096])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        problem = stream.read().decode(errors="replace")
    os.waitpid(child, 0)
    return problem


def _check_in_namespace(mounts: Sequence[Mount]) -> str:
    for mount in mounts:
        if not Path(mount.target, "seen").exists():
            return f"{mount.target} is not visible after mounting"
        try:
            Path(mount.target, "new").touch()
        except OSError as error:
            if error.errno == errno.EROFS:
                continue
        return f"{mount.target} is writable after mounting"
    return ""


def _unshare_mounts() -> None:
    """A mount namespace of our own; without the privilege, together with a user namespace in which we stay who we are."""
    user, group = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS)
    except PermissionError:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _bind(mount: Mount, target: str) -> None:
    if mount.read_only:
        syscalls.bind_read_only(mount.source, target)
    else:
        syscalls.mount(mount.source, target, None, MS_BIND | MS_REC)


def _existing_ancestor(path: Path) -> Tuple[Path, Path]:
    """The nearest real directory above the path, and what is missing below it."""
    ancestor = path
    while not ancestor.exists():
        ancestor = ancestor.parent
    return Path(os.path.realpath(str(ancestor))), path.relative_to(ancestor)


def _rebuild(ancestor: Path, inside_it: List[Tuple[Mount, Path]], stage: Path) -> None:
    """Put a directory with the ancestor's entries and the new mounts in the ancestor's place."""
    writable = os.access(str(ancestor), os.W_OK)
    mode = ancestor.stat().st_mode & 0o7777
    syscalls.mount(str(stage), str(stage), None, MS_BIND)
    syscalls.mount(None, str(stage), None, MS_UNBINDABLE)  # or binds of its ancestors would hold it
    taken = {rest.parts[0] for _, rest in inside_it}
    for entry in os.scandir(str(ancestor)):
        if entry.name not in taken:
            _copy_entry(entry, stage / entry.name)
    for mount, rest in inside_it:
        target = stage / rest
        target.mkdir(0o755, parents=True, exist_ok=True)
        _bind(mount, str(target))
    stage.chmod(mode)
    if not writable:
        syscalls.remount_read_only(str(stage))
    if ancestor == Path("/"):
        os.chdir(str(stage))
        syscalls.pivot_root(".", ".")  # the old root now lies over the new one
        syscalls.unmount(".", syscalls.MNT_DETACH)
        os.chdir("/")
    else:
        syscalls.mount(str(stage), str(ancestor), None, MS_MOVE)
        syscalls.mount(None, str(ancestor), None, MS_PRIVATE)  # bindable again


def _copy_entry(entry: os.DirEntry[str], target: Path) -> None:
    if entry.is_symlink():
        target.symlink_to(os.readlink(entry.path))
        return
    if entry.is_dir(follow_symlinks=False):
        target.mkdir(0o755)
    else:
        target.touch(0o644)
    with contextlib.suppress(FileNotFoundError):  # it went away meanwhile
        syscalls.mount(entry.path, str(target), None, MS_BIND | MS_REC)


def check_mounts(mounts: Sequence[Mount], kept: Sequence[Path]) -> None:
    """Failure for the first mount that is blocked."""
    for mount in mounts:
        why = why_blocked(mount.target, kept)
        if why:
            raise Failure("request", f"nothing can be mounted at {mount.target!r}: {why}")
