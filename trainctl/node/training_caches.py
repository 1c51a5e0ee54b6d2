"""Training caches: read-write directories shared by runs. See DESIGN.md, "Training caches"."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
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
    Optional,
    Set,
    Tuple,
    cast,
)

from trainctl.base.filesystem.files import (
    create_exclusive,
    is_inside,
    list_names,
    make_directory,
    read_json,
    remove_tree,
    write_json,
)
from trainctl.base.lazy_named_tuple import NamedTuple
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
        self._metadata = self.directory / METADATA_DIRECTORY
        if is_inside(layout.root, self.directory):
            raise NodeError(f"{self.directory} contains trainctl's root directory")

    def make(self, lineage: str, owner: str) -> None:
        """Create the directory if missing, and record the owner, a resource."""
        references = make_directory(self._layout.references / lineage)
        write_json(
            references / f"{self._reference}-{owner}.json", {"directory": str(self.directory)}
        )
        existed = self.directory.exists()
        users = make_directory(self._metadata / "users")
        if not existed:
            create_exclusive(self._metadata / "made", b"")
        (users / f"{lineage}+{owner}").touch(0o600)

    def release(self, lineage: str, owner: str = "") -> None:
        """Release it for one owner, or for all of the lineage."""
        released = f"{self._reference}-{owner}" if owner else self._reference
        folder = self._layout.references / lineage
        for name in list_names(folder):
            if name == f"{released}.json" or (not owner and name.startswith(f"{released}-")):
                with contextlib.suppress(FileNotFoundError):
                    (folder / name).unlink()
        for user in list_names(self._metadata / "users"):
            if user == f"{lineage}+{owner}" or (not owner and user.startswith(f"{lineage}+")):
                with contextlib.suppress(FileNotFoundError):
                    (self._metadata / "users" / user).unlink()

    def others(self, lineage: str, owner: str) -> List[str]:
        """Other users of the cache, as ``LINEAGE+OWNER``."""
        users = set(list_names(self._metadata / "users"))
        begin, end = f"{self._reference}-", ".json"
        for other in CacheReferences(self._layout).lineages():
            for name in list_names(self._layout.references / other):
                if name.startswith(begin) and name.endswith(end):
                    users.add(f"{other}+{name[len(begin) : -len(end)]}")
        return sorted(users - {f"{lineage}+{owner}"})

    @property
    def is_owned(self) -> bool:
        """Check that trainctl created it, or that it is below the root directory."""
        return is_inside(self.directory, self._layout.root) or (self._metadata / "made").exists()

    def remove(self) -> int:
        """Remove it, or only trainctl's files if trainctl didn't create it."""
        if self.is_owned:
            return remove_tree(self.directory)
        remove_tree(self._metadata)
        return 0

    def preparation(self, digest: str) -> Path:
        """File that exists if commands with this digest prepared the content: ``{run, name}``."""
        return self._metadata / "prepared" / digest

    def lock(self, subject: str = "") -> FileLease:
        """Lock for preparing and clearing the cache on this node, or for changing its ``-users``."""
        directory = make_directory(self._layout.training)
        return FileLease(directory / f"{_short_name(self.directory)}{subject}.lock")

    @property
    def _reference(self) -> str:
        """How the names of a lineage's references to it begin, next to those to listings."""
        return f"cache-{_short_name(self.directory)}"


def _short_name(directory: Path) -> str:
    """File name for a cache's directory."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:16]


_MAX_QUICK_ENTRIES = 10_000
"""Entries counted before the first complete walk."""


class TrainingCacheEntry(NamedTuple):
    """An entry of a cache; a directory's size is that of all files below."""

    path: str
    size: int
    modified: float
    mode: int


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


def measure_cache(
    cache: Path,
    max_entries: float = math.inf,
    on_entry: Callable[[TrainingCacheEntry], None] = lambda _: None,
) -> TrainingCacheUsage:
    """Count files and bytes of at most ``max_entries`` entries."""
    usage: TrainingCacheUsage = {"bytes": 0, "files": 0, "at": time.time(), "is_complete": True}
    for number, entry in enumerate(walk_entries(cache), 1):
        if number > max_entries:
            return {**usage, "is_complete": False}
        if not stat.S_ISDIR(entry.mode):
            usage["bytes"] += entry.size
            usage["files"] += 1
        on_entry(entry)
    return usage


def update_summary(layout: Layout, cache: Path) -> None:
    """Walk the cache and store its usage; does nothing if it is missing, or if the disk is full."""
    with contextlib.suppress(OSError):
        if cache.is_dir():
            write_json(_summary(layout, cache), measure_cache(cache))


def _summary(layout: Layout, cache: Path) -> Path:
    """File with the usage by the last complete walk."""
    return layout.training / f"{_short_name(cache)}.json"


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
                if (old or emptied) and not self._dry:
                    with contextlib.suppress(OSError):  # not empty
                        os.rmdir(path)  # noqa: PTH106
                        return True
                return False
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
    preparation, lock = cache.preparation(digest), cache.lock()
    while not preparation.exists() and not lock.try_acquire():
        pending("waits for another run to prepare the training cache", None)
        if wait_for_stop(_POLL_SECONDS):
            return RunOutcome(runs.STOPPED)
    try:
        if preparation.exists():
            preparer = read_json(preparation) or {}
            if preparer.get("run") != run.key:  # another run has the commands' log
                path = run.prepared_by(rank)
                make_directory(path.parent)
                write_json(path, {"name": preparer.get("name") or "another run"})
            return None
        begin("prepares the training cache")
        outcome = execute(commands)
        if outcome is not None:
            text = run.tail(rank, PREPARE) if outcome.exit_code else ""
            lines = [line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]
            output = " / ".join(repr(line[:_LINE])[1:-1] for line in lines)
            error = f"{outcome.error}. Output: {output}" if output else outcome.error
            return outcome._replace(error=error)
        name = f"run {spec['number']} ({spec['id']}) of {spec['address']}"
        make_directory(preparation.parent)
        create_exclusive(preparation, json.dumps({"run": run.key, "name": name}).encode())
    finally:
        lock.release()
    return None


Emit = Callable[[Dict[str, Any]], None]
_BUFFER_BYTES = 2**16


def make_cache(request: protocol.CacheOwnerRequest, emit: Emit) -> protocol.MakeCacheResponse:
    """Create the directory if missing, and record its owner."""
    _, cache, lineage, owner = _parse_request(request)
    with cache.lock("-users"):
        cache.make(lineage, names.check_name(owner, "owner"))
    return {"directory": str(cache.directory)}


def remove_cache(request: protocol.CacheOwnerRequest, emit: Emit) -> protocol.RemoveCacheResponse:
    """Release the directory for an owner or the lineage; remove it if unused."""
    layout, cache, lineage, owner = _parse_request(request)
    with cache.lock("-users"):
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
        usage = read_json(_summary(layout, cache.directory))
        if not usage or not cache.directory.is_dir():
            usage = {**measure_cache(cache.directory, _MAX_QUICK_ENTRIES)}
        states.append(
            {
                "directory": str(cache.directory),
                **cast("TrainingCacheUsage", usage),
                "others": cache.others(request["lineage"], item["owner"]),
                "ours": cache.is_owned,
            }
        )
    return {"caches": states}


def read_cache(request: protocol.TrainingCacheRequest, write: Callable[[bytes], None]) -> None:
    """Write a line of JSON for each entry, and the totals as the last line."""
    layout = Layout(request["root"])
    directory = TrainingCache(layout, request["directory"]).directory
    pending = bytearray()

    def send(entry: TrainingCacheEntry) -> None:
        pending.extend(json.dumps(entry).encode() + b"\n")
        if len(pending) > _BUFFER_BYTES:
            write(bytes(pending))
            pending.clear()

    usage = measure_cache(directory, on_entry=send)
    write(bytes(pending) + json.dumps(usage).encode() + b"\n")
    with contextlib.suppress(OSError):  # such as a full disk
        write_json(_summary(layout, directory), usage)


def clear_cache(request: protocol.ClearCacheRequest, emit: Emit) -> protocol.ClearCacheResponse:
    """Remove files last modified ``older_than_seconds`` ago or earlier."""
    layout = Layout(request["root"])
    cache = TrainingCache(layout, request["directory"])
    dry = request["dry_run"]
    before = time.time() - (request["older_than_seconds"] or 0)
    lock = cache.lock()
    if not lock.try_acquire():
        raise LockHeld(f"{cache.directory} is being prepared or cleared", "Try again later.")
    with lock:
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
