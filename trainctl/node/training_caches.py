"""Training caches: read-write directories shared by runs. See DESIGN.md, "Training caches"."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
    cast,
)

from trainctl.base.filesystem.archives import is_inside
from trainctl.base.filesystem.files import (
    create_exclusive,
    list_names,
    make_directory,
    read_json,
    remove_tree,
    write_json,
)
from trainctl.base.lease import FileLease
from trainctl.base.protocol import training as protocol
from trainctl.base.protocol.runs import RunSpec
from trainctl.base.protocol.training import TrainingCacheUsage
from trainctl.errors import LockHeld, NodeError
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import wait_for_stop
from trainctl.node.runs.record import PREPARE, NodeRun, list_specs, prepare_commands
from trainctl.node.scheduling.allocation import PendingFn
from trainctl.node.scheduling.rank_coordination import RunOutcome
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout

METADATA_DIRECTORY = ".trainctl-cache"
"""Directory in a cache that records its creator, users and preparation."""


class TrainingCache:
    """A cache directory of this node or of a shared file system."""

    def __init__(self, layout: Layout, directory: Any) -> None:
        self.directory = names.check_absolute(directory, "directory")
        self._layout = layout
        self._references = CacheReferences(layout)
        if is_inside(layout.root, self.directory):
            raise NodeError(f"{self.directory} contains trainctl's root directory")

    def make(self, lineage: str, owner: str) -> None:
        """Create the directory if missing, and record the owner, a resource."""
        user = _user_key(lineage, owner)
        self._references.refer_cache(lineage, self._file(owner), str(self.directory))
        existed = self.directory.exists()
        make_directory(self._users)
        if not existed:
            create_exclusive(self._creation_marker, b"")
        (self._users / user).touch(0o600)

    def release(self, lineage: str, owner: str = "") -> None:
        """Release it for one owner, or for all of the lineage."""
        self._references.drop_cache(lineage, self._file(owner))
        for user in list_names(self._users):
            if user == _user_key(lineage, owner) or (
                not owner and user.startswith(_user_key(lineage, ""))
            ):
                with contextlib.suppress(FileNotFoundError):
                    (self._users / user).unlink()

    def others(self, lineage: str, owner: str) -> List[str]:
        """Other users of the cache, as ``LINEAGE+OWNER``."""
        users = {
            *list_names(self._users),
            *self._references.cache_users(short_name(self.directory)),
        }
        return sorted(users - {_user_key(lineage, owner)})

    @property
    def is_owned(self) -> bool:
        """Check that trainctl created it, or that it is below the root directory."""
        return is_inside(self.directory, self._layout.root) or self._creation_marker.exists()

    def remove(self) -> int:
        """Remove it, or only trainctl's files if trainctl didn't create it."""
        if self.is_owned:
            return remove_tree(self.directory)
        remove_tree(self.directory / METADATA_DIRECTORY)
        return 0

    def is_prepared(self, digest: str) -> bool:
        """Check that commands with this digest have prepared its current content."""
        return self.preparation(digest).exists()

    def _file(self, owner: str) -> str:
        return f"{short_name(self.directory)}-{owner}" if owner else short_name(self.directory)

    def preparation(self, digest: str) -> Path:
        """File that names the run that has prepared it: ``{run, name}``."""
        return self.directory / METADATA_DIRECTORY / "prepared" / digest

    @property
    def _users(self) -> Path:
        return self.directory / METADATA_DIRECTORY / "users"

    @property
    def _creation_marker(self) -> Path:
        return self.directory / METADATA_DIRECTORY / "made"


def content_lock(layout: Layout, directory: Path) -> FileLease:
    """Lock for preparing and clearing a cache on this node."""
    return FileLease(make_directory(layout.training) / f"{short_name(directory)}.lock")


def short_name(directory: Path) -> str:
    """File name for a cache's directory."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def _user_key(lineage: str, owner: str) -> str:
    return f"{lineage}+{owner}"


_MAX_QUICK_ENTRIES = 10_000
"""Entries counted before the first complete walk."""


class TrainingCacheEntry(NamedTuple):
    """An entry of a cache; a directory's size is that of all files below."""

    path: str
    size: int
    modified: float
    mode: int

    @property
    def is_directory(self) -> bool:
        """Check for a directory, not a symlink to one."""
        return stat.S_ISDIR(self.mode)


def walk_entries(cache: Path) -> Iterator[TrainingCacheEntry]:
    """Walk all entries except trainctl's own, directories after their content.

    Skips entries that vanish or are unreadable. Uses memory for one directory and its ancestors only.
    """
    if not cache.is_dir():
        return
    top = os.path.realpath(str(cache))
    sizes: Dict[str, int] = {}
    for directory, folders, files in os.walk(top, topdown=False):
        below = os.path.relpath(directory, top)
        if below.split("/")[0] == METADATA_DIRECTORY:
            continue
        total = 0
        for name in sorted(files) + sorted(folders):
            path = name if below == os.curdir else f"{below}/{name}"
            if path == METADATA_DIRECTORY:
                continue
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118
                size = status.st_size if stat.S_ISREG(status.st_mode) else sizes.pop(path, 0)
                total += size
                yield TrainingCacheEntry(path, size, status.st_mtime, status.st_mode)
        sizes[below] = total


def measure_cache(cache: Path, max_entries: Optional[int] = None) -> TrainingCacheUsage:
    """Count files and bytes of at most ``max_entries`` entries."""
    began, size, files = time.time(), 0, 0
    for number, entry in enumerate(walk_entries(cache), 1):
        if max_entries is not None and number > max_entries:
            return {"bytes": size, "files": files, "at": began, "is_complete": False}
        if not entry.is_directory:
            size += entry.size
            files += 1
    return {"bytes": size, "files": files, "at": began, "is_complete": True}


def cache_summary(layout: Layout, cache: Path) -> TrainingCacheUsage:
    """Usage by the last complete walk; before the first one, by a short walk."""
    usage = read_json(_summary(layout, cache))
    if usage and cache.is_dir():
        return cast("TrainingCacheUsage", usage)
    return measure_cache(cache, _MAX_QUICK_ENTRIES)


def update_summary(layout: Layout, cache: Path) -> None:
    """Walk the cache and store its usage; does nothing if the cache is missing."""
    with contextlib.suppress(OSError):
        if cache.is_dir():
            store_summary(layout, cache, measure_cache(cache))


def store_summary(layout: Layout, cache: Path, usage: TrainingCacheUsage) -> None:
    """Store a cache's usage; ignores errors such as a full disk."""
    with contextlib.suppress(OSError):
        write_json(_summary(layout, cache), usage)


def _summary(layout: Layout, cache: Path) -> Path:
    return layout.training / f"{short_name(cache)}.json"


class CacheCleaner:
    """Remove old files of a cache bottom-up, without following symlinks.

    ``files`` and ``bytes`` were removed; ``remaining`` counts failures. Removing a file with other hard links frees nothing.
    """

    def __init__(self, cache: Path, before: float, *, dry: bool) -> None:
        self._top = os.path.realpath(str(cache))
        self._before = before
        self._dry = dry
        self.files = self.bytes = self.remaining = 0

    def run(self) -> None:
        """Remove files modified until ``before``, then old and emptied directories."""
        touched: Set[str] = set()
        metadata = os.path.join(self._top, METADATA_DIRECTORY)  # noqa: PTH118
        for directory, folders, files in os.walk(self._top, topdown=False):
            if directory == metadata or directory.startswith(metadata + os.sep):
                continue
            for name in (*files, *folders):
                path = os.path.join(directory, name)  # noqa: PTH118
                if path != metadata and self._remove(path, emptied=path in touched):
                    touched.add(directory)

    def _remove(self, path: str, *, emptied: bool) -> bool:
        try:
            status = os.lstat(path)
            old = status.st_mtime <= self._before
            if stat.S_ISDIR(status.st_mode):
                return (old or emptied) and not self._dry and _remove_empty(path)
            if not old:
                return False
            if not self._dry:
                os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        except OSError:
            self.remaining += 1
            return False
        self.files += 1
        self.bytes += status.st_size if status.st_nlink == 1 and stat.S_ISREG(status.st_mode) else 0
        return True


def _remove_empty(path: str) -> bool:
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError:  # not empty
        return False
    return True


_POLL_SECONDS = 0.5
_LAST_LINES = 3
_LINE = 200


def prepare_cache(
    run: NodeRun,
    spec: RunSpec,
    execute: Callable[[List[str]], Optional[RunOutcome]],
    pending: PendingFn,
    begin: Callable[[str], None],
) -> Optional[RunOutcome]:
    """Run the prepare commands unless done; None if ready, else the outcome.

    ``execute`` runs commands like the job's; ``begin`` receives a description of the current step.
    """
    rank, commands = int(spec["rank"]), prepare_commands(spec)
    if not commands or spec["project_cache"] is None:
        return None
    digest = hashlib.sha256(json.dumps(commands).encode()).hexdigest()
    cache = TrainingCache(run.layout, spec["project_cache"])
    lock = content_lock(run.layout, cache.directory)
    while not cache.is_prepared(digest) and not lock.try_acquire():
        pending("waits for another run to prepare the training cache", None)
        if wait_for_stop(_POLL_SECONDS):
            return RunOutcome(runs.STOPPED)
    try:
        if cache.is_prepared(digest):
            preparer = read_json(cache.preparation(digest)) or {}
            if preparer.get("run") != run.key:  # another run has the commands' log
                path = run.prepared_by(rank)
                make_directory(path.parent)
                write_json(path, {"name": preparer.get("name") or "another run"})
            return None
        begin("prepares the training cache")
        outcome = execute(commands)
        if outcome is not None:
            return _with_last_lines(outcome, run, rank)
        name = f"run {spec['number']} ({spec['id']}) of {spec['address']}"
        make_directory(cache.preparation(digest).parent)
        made_by = json.dumps({"run": run.key, "name": name})
        create_exclusive(cache.preparation(digest), made_by.encode())
    finally:
        lock.release()
    return None


def _with_last_lines(outcome: RunOutcome, run: NodeRun, rank: int) -> RunOutcome:
    """Append the last lines that the commands printed to the error."""
    text = run.tail(rank, PREPARE) if outcome.exit_code else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    output = " / ".join(repr(line[:_LINE])[1:-1] for line in lines)
    return outcome._replace(error=f"{outcome.error}. Output: {output}") if output else outcome


Emit = Callable[[Dict[str, Any]], None]
_BUFFER_BYTES = 2**16


def make_cache(request: protocol.CacheOwnerRequest, emit: Emit) -> protocol.MakeCacheResponse:
    """Create the directory if missing, and record its owner."""
    layout, cache, lineage, owner = _parse_request(request)
    with _users_lock(layout, cache):
        cache.make(lineage, names.check_name(owner, "owner"))
    return {"directory": str(cache.directory)}


def remove_cache(request: protocol.CacheOwnerRequest, emit: Emit) -> protocol.RemoveCacheResponse:
    """Release the directory for an owner or the lineage; remove it if unused."""
    layout, cache, lineage, owner = _parse_request(request)
    with _users_lock(layout, cache):
        cache.release(lineage, owner)
        others = cache.others(lineage, owner)
        freed = 0 if others else cache.remove()
    if not others:
        with contextlib.suppress(FileNotFoundError):
            _summary(layout, cache.directory).unlink()
    removed = not others and not cache.directory.exists()
    return {"directory": str(cache.directory), "bytes": freed, "removed": removed}


def cache_state(request: protocol.CacheStatesRequest, emit: Emit) -> protocol.CacheStatesResponse:
    """Report usage, other users, and whether the last release removes a cache."""
    layout = Layout(request["root"])
    states: List[protocol.TrainingCacheState] = []
    for item in request["caches"]:
        cache = TrainingCache(layout, item["directory"])
        states.append(
            {
                "directory": str(cache.directory),
                **cache_summary(layout, cache.directory),
                "others": cache.others(request["lineage"], item["owner"]),
                "ours": cache.is_owned,
            }
        )
    return {"caches": states}


def read_cache(request: protocol.TrainingCacheRequest, write: Callable[[bytes], None]) -> None:
    """Write a line of JSON for each entry, and the totals as the last line."""
    layout = Layout(request["root"])
    directory = TrainingCache(layout, request["directory"]).directory
    at, total, files = time.time(), 0, 0
    pending: List[str] = []
    size = 0
    for entry in walk_entries(directory):
        if not entry.is_directory:
            total += entry.size
            files += 1
        pending.append(json.dumps(entry))
        size += len(pending[-1])
        if size > _BUFFER_BYTES:
            write(("\n".join(pending) + "\n").encode())
            pending, size = [], 0
    usage: protocol.TrainingCacheUsage = {
        "bytes": total,
        "files": files,
        "at": at,
        "is_complete": True,
    }
    write(("\n".join([*pending, json.dumps(usage)]) + "\n").encode())
    store_summary(layout, directory, usage)


def clear_cache(request: protocol.ClearCacheRequest, emit: Emit) -> protocol.ClearCacheResponse:
    """Remove files last modified ``older_than_seconds`` ago or earlier."""
    layout = Layout(request["root"])
    cache = TrainingCache(layout, request["directory"])
    dry = request["dry_run"]
    before = time.time() - (request["older_than_seconds"] or 0)
    lock = content_lock(layout, cache.directory)
    if not lock.try_acquire():
        raise LockHeld(f"{cache.directory} is being prepared or cleared", "Try again later.")
    try:
        if not dry:
            for run, spec in list_specs(layout):
                status = run.status() if str(cache.directory) in spec["caches"] else None
                if status and status["supervised"]:
                    number = f"run {spec['number']} of {spec['address']}"
                    raise LockHeld(
                        f"the cache is in use by {number}",
                        "Wait for the run to end, or stop it.",
                    )
        cleaner = CacheCleaner(cache.directory, before, dry=dry)
        cleaner.run()
        if cleaner.files and not dry:
            remove_tree(cache.directory / METADATA_DIRECTORY / "prepared")
    finally:
        lock.release()
    if not dry:
        update_summary(layout, cache.directory)
    return {"files": cleaner.files, "bytes": cleaner.bytes, "left": cleaner.remaining}


def _parse_request(request: protocol.CacheOwnerRequest) -> Tuple[Layout, TrainingCache, str, str]:
    layout = Layout(request["root"])
    owner = request.get("owner", "")
    return (
        layout,
        TrainingCache(layout, request["directory"]),
        names.check_name(request["lineage"], "lineage"),
        names.check_name(owner, "owner") if owner else "",
    )


def _users_lock(layout: Layout, cache: TrainingCache) -> FileLease:
    return FileLease(make_directory(layout.training) / f"{short_name(cache.directory)}-users.lock")
