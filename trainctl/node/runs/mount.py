"""Private mount namespaces for weights. See DESIGN.md, "Mounts"."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from trainctl.base.filesystem.files import is_inside, make_directory, remove_tree
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.system import syscalls
from trainctl.base.system.syscalls import (
    MS_BIND,
    MS_MOVE,
    MS_PRIVATE,
    MS_REC,
    MS_SLAVE,
    MS_UNBINDABLE,
)

_MAX_ENTRIES = 2000
_KERNEL = (Path("/proc"), Path("/sys"), Path("/dev"))


class Mount(NamedTuple):
    """A directory that the job alone sees at another path."""

    target: str
    source: str
    read_only: bool = True


def blocked_reason(target: str, protected: Sequence[Path]) -> Optional[str]:
    """Reason against a mount at a path; ``protected`` paths must stay visible."""
    path = Path(target)
    if not path.is_absolute() or ".." in path.parts or path == Path("/"):
        return "a mount needs an absolute path without '..' below /"
    real = Path(os.path.realpath(target))
    if any(is_inside(real, directory) for directory in _KERNEL):
        return "it is below /proc, /sys or /dev"
    hidden = next((directory for directory in protected if is_inside(directory, real)), None)
    if hidden is not None:
        return f"it would hide {hidden}"
    if os.path.lexists(target):
        return None if path.is_dir() else "it is not a directory"
    ancestor = _existing_ancestor(path)[0]
    if not ancestor.is_dir():
        return f"{ancestor} is not a directory"
    try:
        count = sum(1 for _ in ancestor.iterdir())
    except PermissionError:
        return f"{ancestor} is not readable for user {os.geteuid()}; create the directory once"
    if count > _MAX_ENTRIES:
        return f"{ancestor} has {count} entries; create the directory once"
    return None


def enter_namespace(mounts: Sequence[Mount], view: Path, hidden: Optional[Path]) -> None:
    """Move this single-threaded process to a mount namespace of its own.

    ``view`` is an empty directory on disk for rebuilt directories; ``hidden`` is covered by an empty directory.
    OSError if the kernel denies it.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS)
    except PermissionError:  # needs a user namespace, too
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    syscalls.mount(None, "/", None, MS_REC | MS_SLAVE)
    groups: Dict[Path, List[Tuple[Mount, Path]]] = {}
    for mount in mounts:
        if Path(mount.target).is_dir():
            _bind(mount, mount.target)
        else:
            ancestor, rest = _existing_ancestor(Path(mount.target))
            groups.setdefault(ancestor, []).append((mount, rest))
    for number, ancestor in enumerate(sorted(groups, key=lambda path: -len(path.parts))):
        stage = make_directory(view / str(number))
        _rebuild(ancestor, groups[ancestor], stage)
    if hidden is not None and hidden.is_dir():
        flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("none", str(hidden), "tmpfs", flags, "size=4k,mode=0555")


@functools.lru_cache(maxsize=None)
def mount_problem(within: Optional[Path] = None) -> str:
    """Why private mounts don't work here, tried below a new directory of ``/``; empty if they do."""
    return try_mounts(["/.trainctl-probe/mount"], within)


def try_mounts(targets: Sequence[str], within: Optional[Path] = None) -> str:
    """Mount read-only at the targets in a child process; why that doesn't work, else empty.

    ``within``: parent of a temporary directory for the attempt.
    """
    import tempfile

    scratch = Path(tempfile.mkdtemp(prefix="trainctl-probe-", dir=within and str(within)))
    try:
        source = make_directory(scratch / "source")
        (source / "probe").touch()
        mounts = [Mount(target, str(source)) for target in targets]
        return _try_in_child(mounts, make_directory(scratch / "view"))
    finally:
        remove_tree(scratch)


def _try_in_child(mounts: Sequence[Mount], view: Path) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        problem = "the probe process was killed"
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
        if not Path(mount.target, "probe").exists():
            return f"{mount.target} is not visible after mounting"
        try:
            Path(mount.target, "new").touch()
        except OSError as error:
            if error.errno == errno.EROFS:
                continue
        return f"{mount.target} is writable after mounting"
    return ""


def _bind(mount: Mount, target: str) -> None:
    if mount.read_only:
        syscalls.mount(mount.source, target, None, syscalls.MS_BIND | syscalls.MS_REC)
        syscalls.remount_read_only(target)
    else:
        syscalls.mount(mount.source, target, None, MS_BIND | MS_REC)


def _existing_ancestor(path: Path) -> Tuple[Path, Path]:
    """Nearest existing ancestor, resolved, and the path below it."""
    ancestor = path
    while not ancestor.exists():
        ancestor = ancestor.parent
    return Path(os.path.realpath(str(ancestor))), path.relative_to(ancestor)


def _rebuild(ancestor: Path, inside_it: List[Tuple[Mount, Path]], stage: Path) -> None:
    """Replace a directory by one with the same entries and the new mounts."""
    writable = os.access(str(ancestor), os.W_OK)
    mode = ancestor.stat().st_mode & 0o7777
    syscalls.mount(str(stage), str(stage), None, MS_BIND)
    # or binds of its ancestors would contain it
    syscalls.mount(None, str(stage), None, MS_UNBINDABLE)
    mounted = {rest.parts[0] for _, rest in inside_it}
    for entry in os.scandir(str(ancestor)):
        copy = stage / entry.name
        if entry.name in mounted:
            continue
        if entry.is_symlink():
            copy.symlink_to(os.readlink(entry.path))
            continue
        if entry.is_dir(follow_symlinks=False):
            copy.mkdir(0o755)
        else:
            copy.touch(0o644)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            syscalls.mount(entry.path, str(copy), None, MS_BIND | MS_REC)
    for mount, rest in inside_it:
        target = stage / rest
        target.mkdir(0o755, parents=True, exist_ok=True)
        _bind(mount, str(target))
    stage.chmod(mode)
    if not writable:
        syscalls.remount_read_only(str(stage))
    if ancestor == Path("/"):
        os.chdir(str(stage))
        syscalls.pivot_root(".", ".")  # stacks the old root on the new one
        syscalls.unmount(".", syscalls.MNT_DETACH)
        os.chdir("/")
    else:
        syscalls.mount(str(stage), str(ancestor), None, MS_MOVE)
        syscalls.mount(None, str(ancestor), None, MS_PRIVATE)  # bindable again
