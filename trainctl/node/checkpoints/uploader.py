"""Upload a run's checkpoints while its job runs. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Sequence, Set, cast

from trainctl.base.checkpoints.layout import (
    LOOSE,
    Retention,
    age_key,
    expired_checkpoints,
    folder_of,
    number_series,
    series,
)
from trainctl.base.checkpoints.manifests import (
    COMPLETE,
    FORMAT,
    VERSIONS,
    CheckpointManifest,
    RunCheckpoints,
    points_key,
)
from trainctl.base.checkpoints.stores import (
    CheckpointStore,
    DirectoryCheckpointStore,
    UnstorableFile,
    open_checkpoint_store,
)
from trainctl.base.filesystem.files import resolve_within
from trainctl.base.objects import ObjectStat
from trainctl.base.points import points_json
from trainctl.base.protocol.runs import RunSpec
from trainctl.base.throughput import RateLimiter
from trainctl.base.units import parse_size
from trainctl.node.checkpoints.metadata import (
    checkpoint_step,
    describe_checkpoint,
    pointers_of,
    unfinished_reason,
)
from trainctl.node.checkpoints.monitor import (
    CheckpointKey,
    CheckpointMonitor,
    Inode,
    RunEnd,
    SavedCheckpoint,
    SavedFile,
    list_saved,
)
from trainctl.node.checkpoints.retention import spared_checkpoints
from trainctl.node.checkpoints.upload_journal import COMPLETED, SYNCING, UploadJournal, UploadRecord
from trainctl.node.runs.points import points_of
from trainctl.node.runs.record import NodeRun, upload_status

_BLOCK = 2**20
_RUN_KEYS = ("key", "id", "number", "generation", "lineage", "address", "project", "rank")


def open_store_for(
    location: Mapping[str, Any], data: Path, secrets: Mapping[str, str]
) -> CheckpointStore:
    """Open the store of a job's checkpoints; without URL, the job's own directory."""
    if location.get("url") is None:
        return DirectoryCheckpointStore(data / "checkpoints")
    return open_checkpoint_store(location, secrets)


class Uploader:
    """Uploads and retention of one run's checkpoints; all state is on disk."""

    def __init__(self, run: NodeRun, spec: RunSpec, secrets: Mapping[str, str], data: Path) -> None:
        self._run = run
        self._spec = spec
        settings, wanted = spec["store"], spec["checkpoints"]
        self._retention = Retention(
            wanted["keep_last"], wanted["keep_every"], wanted.get("keep_best")
        )
        self._in_place = settings.get("url") is None
        self._target = RunCheckpoints(open_store_for(settings, data, secrets), settings["prefix"])
        self._local = data / "checkpoints" / self._target.prefix
        self._rank = int(spec["rank"])
        self._run_file = f"run-{self._rank}.json" if self._rank else "run.json"
        self._journal = UploadJournal(run.directory)
        self._rate_limiter = RateLimiter(
            None if wanted["max_rate"] is None else parse_size(wanted["max_rate"])
        )
        self._monitor = CheckpointMonitor(settings)
        self._loaded = False
        self._ended_orderly = False
        self._complete: Dict[CheckpointKey, CheckpointManifest] = {}
        self._refused: Dict[CheckpointKey, str] = {}

    def announce(self) -> None:
        """Write ``run.json`` to the store; TrainctlError if the store refuses it."""
        if not self._in_place:
            self._write_run({"status": "TRAINING_JOB_DEPLOYING"})

    def run_round(self, end: Optional[RunEnd] = None) -> bool:
        """Upload settled files and complete checkpoints; with ``end``, True if done."""
        self._load()
        self._ended_orderly = end is not None and end.orderly
        self._journal.heartbeat()
        saved = self._saved()
        self._monitor.observe(saved, end)
        pending = [checkpoint for checkpoint in saved if self._is_pending(checkpoint)]
        writing = set() if end else self._monitor.open_files(pending)
        for checkpoint in pending:  # errors of the store end the round, those of a checkpoint don't
            try:
                self._upload(checkpoint, writing, end)
            except UnstorableFile as error:  # noqa: PERF203
                self._refused[checkpoint.key] = error.summary
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                self._refused[checkpoint.key] = (
                    f"name of checkpoint {checkpoint.name!r} is too long"
                )
        errors = [self._refused.get(checkpoint.key) for checkpoint in pending]
        remaining = [checkpoint for checkpoint in pending if not self._is_complete(checkpoint)]
        self._drop_vanished(saved)
        self._retain(saved, ended=end is not None)
        self._report(remaining, next(filter(None, errors), None))
        return all(checkpoint.key in self._refused for checkpoint in remaining)

    def prune(self) -> None:
        """Apply retention after the run's end."""
        self._load()
        self._retain(self._saved(), ended=True)

    def finish(self, end: RunEnd) -> None:
        """Remove incomplete checkpoints from the store and record the run's end."""
        top, rank = self._target.prefix, f"rank-{self._rank}/"
        self._target.store.abandon(f"{top}/{COMPLETE}/{rank}")
        if self._in_place:
            present = {checkpoint.key for checkpoint in list_saved(self._local)}
            for manifest in self._target.manifests():
                key = manifest["rank"], manifest["name"]
                if manifest["rank"] == self._rank and key not in present:  # the job removed it
                    self._target.store.delete(self._target.manifest_key(*key))
        else:
            self._sweep()
            for prefix in (f"{top}/{rank}", f"{top}/{VERSIONS}/{rank}", f"{top}/.{self._run_file}"):
                self._target.store.abandon(prefix)
            self._put_points()
            self._write_run(end.record)
        keys = sorted(self._refused)
        refusals = "; ".join(self._refused[key] for key in keys) or None
        self._journal.report(COMPLETED, refusals, [name for _, name in keys])

    def report_failure(self, error: str) -> None:
        """Report an error and pending checkpoints without access to the store."""
        if not self._loaded:
            self._journal.load()
        reported = set(upload_status(self._run.directory).get("pending") or ())
        saved: List[SavedCheckpoint] = []
        with contextlib.suppress(OSError):
            saved = self._saved()
        pending = [
            checkpoint
            for checkpoint in saved
            if checkpoint.name in reported
            or any(
                (*checkpoint.key, file.path) not in self._journal.files for file in checkpoint.files
            )
        ]
        self._report([checkpoint for checkpoint in pending if self._is_pending(checkpoint)], error)

    def _load(self) -> None:
        """Resume from an earlier uploader's journal, as far as the store confirms it."""
        if self._loaded:
            return
        self._complete = {
            (manifest["rank"], manifest["name"]): manifest
            for manifest in self._target.manifests()
            if manifest["rank"] == self._rank
        }
        self._journal.load()
        if not self._in_place:
            sizes = {stored.key: stored.size for stored in self._objects()}
            for key, uploaded in list(self._journal.files.items()):
                if sizes.get(uploaded.key) != uploaded.size:
                    self._journal.files.pop(key, None)
        self._loaded = True

    def _saved(self) -> List[SavedCheckpoint]:
        return [
            checkpoint for checkpoint in list_saved(self._local) if checkpoint.rank == self._rank
        ]

    def _is_pending(self, checkpoint: SavedCheckpoint) -> bool:
        return not (self._is_complete(checkpoint) or self._is_superseded(checkpoint))

    def _is_complete(self, checkpoint: SavedCheckpoint) -> bool:
        """Check that the manifest describes the checkpoint, now or before files vanished.

        Logs that grow next to it count only when the run has ended.
        """
        manifest = self._complete.get(checkpoint.key)
        if manifest is None:
            return False
        files = checkpoint.files if self._ended_orderly else checkpoint.deciding
        manifested = {(file["path"], file["size"], file["modified"]) for file in manifest["files"]}
        present = {(file.path, file.size, file.modified) for file in files}
        skips_more = checkpoint.skipped_links > manifest.get("skipped_links", 0)
        if not present <= manifested or (skips_more and present == manifested):
            return False
        # A store keeps files that the job removes; in place, only targets of symlinks may vanish.
        paths = {file.path for file in checkpoint.files}
        is_whole = all(file["path"] in paths for file in manifest["files"])
        return is_whole or not self._in_place or skips_more

    def _is_superseded(self, checkpoint: SavedCheckpoint) -> bool:
        """Check whether retention would delete it right after its upload."""
        if self._in_place or checkpoint.name == LOOSE or checkpoint.key in self._complete:
            return False
        paths = [file.path for file in checkpoint.files]
        step = checkpoint_step(checkpoint.directory, checkpoint.name, paths)
        row = {**checkpoint.row, "step": step}
        rows = [*self._complete.values(), row]
        expired = expired_checkpoints(rows, self._retention)
        return row in expired and row["name"] not in self._spared(rows)

    def _upload(
        self, checkpoint: SavedCheckpoint, writing: Set[Inode], end: Optional[RunEnd]
    ) -> None:
        due = self._monitor.is_due(checkpoint, end)
        if end is not None and not due:
            raise UnstorableFile(f"run was killed while {checkpoint.name!r} may have been written")
        settled: Sequence[SavedFile] = checkpoint.files
        if end is None:
            files = self._monitor.settled(checkpoint)
            settled = [file for file in files if file.inode not in writing]
        for file in settled:
            self._upload_file(checkpoint, file)
        deciding = set(checkpoint.deciding)
        if self._in_place and end is None:  # a log that grows would differ from its digest
            settled = [file for file in settled if file in deciding]
        if due and deciding <= set(settled):
            self._make_complete(checkpoint._replace(files=tuple(settled)))
            self._refused.pop(checkpoint.key, None)

    def _version(self, checkpoint: SavedCheckpoint) -> int:
        manifest = self._complete.get(checkpoint.key)
        return int(manifest["version"]) + 1 if manifest else 1

    def _upload_file(self, checkpoint: SavedCheckpoint, file: SavedFile) -> UploadRecord:
        """Upload a file unless it is stored already, by an earlier version or attempt."""
        key = (*checkpoint.key, file.path)
        rows = self._complete.get(checkpoint.key, {}).get("files", ())
        known = [
            UploadRecord(row["size"], row["modified"], row["sha256"], row["key"])
            for row in rows
            if row["path"] == file.path
        ]
        for stored in (*known, self._journal.files.get(key)):
            if stored is not None and stored[:2] == (file.size, file.modified):  # it is unchanged
                return stored
        version = 1 if self._in_place else self._version(checkpoint)
        object_key = self._target.file_key(
            checkpoint.rank, checkpoint.name, checkpoint.folder, file.path, version
        )
        digest = self._send(checkpoint, file, object_key)
        uploaded = UploadRecord(file.size, file.modified, digest, object_key)
        self._journal.add(key, uploaded)
        return uploaded

    def _send(self, checkpoint: SavedCheckpoint, file: SavedFile, key: str) -> str:
        """Hash and upload the file, or only hash it in place; TrainctlError if it changes."""
        path = resolve_within(checkpoint.directory / file.path, checkpoint.top)
        if path is None:
            raise UnstorableFile(f"{file.path!r} was removed during its upload")
        with path.open("rb") as raw:
            stream = _HashingReader(raw)
            if self._in_place:
                while stream.read(_BLOCK):
                    pass
            else:
                self._target.store.put_file(
                    key, cast(BinaryIO, stream), file.size, self._rate_limiter
                )
            status = os.fstat(raw.fileno())
        now = (stream.size, status.st_size, status.st_mtime_ns)
        if now != (file.size, file.size, file.modified):
            raise UnstorableFile(f"{file.path!r} changed during its upload")
        return stream.digest.hexdigest()

    def _make_complete(self, checkpoint: SavedCheckpoint) -> None:
        """Write the manifest if the files are unchanged; delete the version before."""
        uploaded = {file.path: self._upload_file(checkpoint, file) for file in checkpoint.files}
        saved = {other.key: other for other in self._saved()}
        now = saved.pop(checkpoint.key, None)
        if now is None or not set(checkpoint.files) <= set(now.files):
            raise UnstorableFile(f"{checkpoint.name!r} changed during its upload")
        before = self._complete.get(checkpoint.key)
        siblings = [other.files for other in saved.values() if other.series == checkpoint.series]
        place, name = checkpoint.directory, checkpoint.name
        sizes = {file.path: file.size for file in checkpoint.files}
        paths = {file.path for files in siblings for file in files}
        manifest: CheckpointManifest = dict(
            format=FORMAT,
            version=self._version(checkpoint),
            **checkpoint.row,
            folder=checkpoint.folder,
            files=[{"path": path, **file._asdict()} for path, file in sorted(uploaded.items())],
            bytes=checkpoint.bytes,
            completed_at=time.time(),
            **{name: self._spec.get(name) for name in ("address", "project", "id", "number")},
            **describe_checkpoint(place, name, uploaded),
            unfinished=unfinished_reason(place, name, sizes, paths, checkpoint.rank),
        )
        number_series([*self._complete.values(), manifest])
        manifest["pointers"] = [pointer._asdict() for pointer in pointers_of(checkpoint, manifest)]
        self._target.put(manifest)
        self._complete[checkpoint.key] = manifest
        self._put_points()
        if before and not self._in_place:
            self._delete_unreferenced(_object_keys(before))

    def _retain(self, saved: Sequence[SavedCheckpoint], *, ended: bool) -> None:
        """Apply retention; for checkpoints stored in place, only after the job has ended."""
        if self._in_place and not ended:
            return
        rows = list(self._complete.values())
        leased: Set[CheckpointKey] = set()
        if expired_checkpoints(rows, self._retention):
            leased = self._target.leased()
            files = [file for checkpoint in saved for file in checkpoint.files if self._in_place]
            targets = {file.inode for file in files if file.linked}
            leased |= {  # symlinks of other checkpoints lead there
                checkpoint.key
                for checkpoint in saved
                if any(file.inode in targets and not file.linked for file in checkpoint.files)
            }
        expired = expired_checkpoints(rows, self._retention, leased)
        spared = self._spared(rows, ended=ended) if expired else ()
        expired = [row for row in expired if row["name"] not in spared]
        for manifest in [*expired, *self._replaced_files(saved)]:
            key = (manifest["rank"], manifest["name"])
            del self._complete[key]
            self._target.store.delete(self._target.manifest_key(*key))
            for file in manifest["files"]:
                self._journal.files.pop((*key, file["path"]), None)
            self._delete_unreferenced(_object_keys(manifest))

    def _spared(self, rows: Sequence[CheckpointManifest], *, ended: bool = False) -> Set[str]:
        return spared_checkpoints(self._run, rows, self._retention.ranking, ended=ended)

    def _replaced_files(self, saved: Sequence[SavedCheckpoint]) -> List[CheckpointManifest]:
        """Return checkpoints without a directory that the trainer removed after it saved a newer one.

        Not if retention decides how many are kept.
        """
        if self._in_place or self._retention != Retention():
            return []
        present = {checkpoint.key for checkpoint in saved}
        rows = sorted(self._complete.values(), key=age_key)
        newest = {series(row["name"]): row for row in rows if not row.get("unfinished")}
        return [
            row
            for row in rows
            if folder_of(row) != row["name"] != LOOSE
            and (row["rank"], row["name"]) not in present
            and newest.get(series(row["name"]), row) is not row
        ]

    def _drop_vanished(self, saved: Sequence[SavedCheckpoint]) -> None:
        """Delete uploads of files that the job removed or renamed before their checkpoint was complete."""
        present = {(*kept.key, file.path) for kept in saved for file in kept.files}
        vanished = {key: file for key, file in self._journal.files.items() if key not in present}
        for key in vanished:
            self._journal.files.pop(key, None)
        if vanished and not self._in_place:
            self._delete_unreferenced({uploaded.key for uploaded in vanished.values()})

    def _delete_unreferenced(self, keys: Set[str]) -> None:
        """Delete objects that are neither of a complete checkpoint nor uploaded for another one."""
        referenced = {key for manifest in self._complete.values() for key in _object_keys(manifest)}
        referenced.update(uploaded.key for uploaded in self._journal.files.values())
        for key in keys - referenced:
            self._target.store.delete(key)

    def _report(self, pending: List[SavedCheckpoint], error: Optional[str]) -> None:
        self._journal.report(SYNCING, error, [checkpoint.name for checkpoint in pending])

    def _objects(self) -> List[ObjectStat]:
        top, rank = self._target.prefix, f"rank-{self._rank}/"
        list_objects = self._target.store.list
        return [*list_objects(f"{top}/{rank}"), *list_objects(f"{top}/{VERSIONS}/{rank}")]

    def _sweep(self) -> None:
        """Delete unreferenced objects: of incomplete checkpoints and older versions."""
        referenced = {
            key for manifest in self._target.manifests() for key in _object_keys(manifest)
        }
        for stored in self._objects():
            if stored.key not in referenced:
                self._target.store.delete(stored.key)

    def _put_points(self) -> None:
        points = {} if self._in_place else points_of(self._run)
        if points:
            key, text = points_key(self._target.prefix, self._rank), json.dumps(points_json(points))
            self._target.store.put(key, text.encode())

    def _write_run(self, record: Mapping[str, Any]) -> None:
        identity = {name: self._spec.get(name) for name in _RUN_KEYS}
        text = json.dumps({**identity, **record}, sort_keys=True) + "\n"
        self._target.store.put(f"{self._target.prefix}/{self._run_file}", text.encode())


def _object_keys(manifest: CheckpointManifest) -> Set[str]:
    return {file["key"] for file in manifest["files"]}


class _HashingReader:
    """Hash a stream while it is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes."""
        data = self._stream.read(size)
        self.digest.update(data)
        self.size += len(data)
        return data
