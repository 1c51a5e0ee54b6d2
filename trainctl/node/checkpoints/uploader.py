"""Upload a run's checkpoints to their store while the job goes on. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Sequence, Set, cast

from trainctl.base.checkpoints.directory_store import DirectoryCheckpointStore
from trainctl.base.checkpoints.manifests import (
    COMPLETE,
    FORMAT,
    VERSIONS,
    CheckpointManifest,
    RunCheckpoints,
)
from trainctl.base.checkpoints.ranking import LOOSE, Retention, expired_checkpoints
from trainctl.base.checkpoints.stores import CheckpointStore, open_checkpoint_store
from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import resolve_within
from trainctl.base.objects import ObjectStat
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.throughput import RateLimiter
from trainctl.node.checkpoints.metadata import checkpoint_step, describe_checkpoint
from trainctl.node.checkpoints.monitor import (
    CheckpointKey,
    CheckpointMonitor,
    Inode,
    RunEnd,
    SavedCheckpoint,
    SavedFile,
    inspect_checkpoint,
    list_saved,
)
from trainctl.node.checkpoints.upload_journal import COMPLETED, SYNCING, UploadJournal, UploadRecord
from trainctl.node.runs.record import NodeRun

_BLOCK = 2**20
_RUN_KEYS = ("key", "id", "number", "generation", "lineage", "address", "project", "rank")


def open_store_for(
    place: Mapping[str, Any], data: Path, secrets: Mapping[str, str]
) -> CheckpointStore:
    """The store of a job's checkpoints; without a URL they are kept where the job saves them."""
    if place.get("url") is None:
        return DirectoryCheckpointStore(data / "checkpoints")
    return open_checkpoint_store(place, secrets)


class Uploader:
    """The checkpoints of one run. ``inspect_checkpoint`` does what is due and returns; all that a restart needs is on disk."""

    def __init__(self, run: NodeRun, spec: RunSpec, secrets: Mapping[str, str], data: Path) -> None:
        self._spec = spec
        settings = spec["store"]
        self._retention = Retention(settings.get("keep_last"), settings.get("keep_every"))
        self._in_place = settings.get("url") is None
        self._kept = RunCheckpoints(open_store_for(settings, data, secrets), settings["prefix"])
        self._local = data / "checkpoints" / self._kept.prefix
        self._rank = int(spec["rank"])
        self._journal = UploadJournal(run.directory)
        self._rate_limiter = RateLimiter(settings.get("max_rate"))
        self._watch = CheckpointMonitor(settings)
        self._loaded = False
        self._complete: Dict[CheckpointKey, CheckpointManifest] = {}
        self._refused: Dict[CheckpointKey, str] = {}

    def announce(self) -> None:
        """Write ``run.json`` into the store: Failure if checkpoints can't be kept there."""
        if not self._in_place:
            self._write_run({"status": "TRAINING_JOB_DEPLOYING"})

    def look(self, end: Optional[RunEnd] = None) -> bool:
        """Upload finished files and write the manifests of complete checkpoints, once. With ``end``: whether nothing is left."""
        self._load()
        self._journal.heartbeat()
        saved = self._here()
        self._watch.look(saved, end)
        pending = [one for one in saved if self._is_wanted(one)]
        writing = set() if end else self._watch.open_files(pending)
        failures = [self._try(one, writing, end) for one in pending]
        left = [one for one in pending if not self._is_complete(one)]
        self._drop_vanished({one.place for one in saved})
        self._retain(ended=end is not None)
        self._say(left, next(filter(None, failures), None))
        return all(one.place in self._refused for one in left)

    def finish(self, end: RunEnd) -> None:
        """After the last round of an ended run: remove from the store what is incomplete, and record the end there."""
        top, rank = self._kept.prefix, f"rank-{self._rank}/"
        self._kept.store.abandon(f"{top}/{COMPLETE}/{rank}")
        if self._in_place:
            self._forget_vanished()
        else:
            self._sweep()
            for prefix in (f"{top}/{rank}", f"{top}/{VERSIONS}/{rank}", f"{top}/.{self._run_file}"):
                self._kept.store.abandon(prefix)
            self._write_run(end.record)
        places = sorted(self._refused)
        refusals = "; ".join(self._refused[place] for place in places) or None
        self._journal.say(COMPLETED, refusals, [name for _, name in places])

    def report_failure(self, error: str) -> None:
        """Report why the upload can't go on, and what is left; the store, which may be silent, isn't asked."""
        if not self._loaded:
            self._journal.load()
        known, here = set(self._journal.pending), self._here()
        left = [one for one in here if one.name in known or not self._is_uploaded(one)]
        self._say([one for one in left if self._is_wanted(one)], error)

    def _load(self) -> None:
        """Take over what an earlier uploader has done, as far as the store confirms it."""
        if self._loaded:
            return
        manifests = (
            (manifest["rank"], manifest["name"], manifest) for manifest in self._kept.manifests()
        )
        self._complete = {(rank, name): one for rank, name, one in manifests if rank == self._rank}
        self._journal.load()
        if not self._in_place:
            sizes = {stored.key: stored.size for stored in self._objects()}
            for place, known in list(self._journal.files.items()):
                if sizes.get(known.key) != known.size:
                    self._journal.drop(place)
        self._loaded = True

    def _here(self) -> List[SavedCheckpoint]:
        return [one for one in list_saved(self._local) if one.rank == self._rank]

    def _is_wanted(self, one: SavedCheckpoint) -> bool:
        return not (self._is_complete(one) or self._is_superseded(one))

    def _is_uploaded(self, one: SavedCheckpoint) -> bool:
        """Whether every file of it has been in the store, even if it was deleted there since."""
        return all((*one.place, file.path) in self._journal.files for file in one.files)

    def _is_complete(self, one: SavedCheckpoint) -> bool:
        """Whether the manifest describes it as it is now, or as it was before the job removed files."""
        manifest = self._complete.get(one.place)
        if manifest is None:
            return False
        known = {(file["path"], file["size"], file["modified"]) for file in manifest["files"]}
        here = {(file.path, file.size, file.modified) for file in one.files}
        more_left_out = one.skipped_links > manifest.get("skipped_links", 0)
        # A store keeps what the job removes; in place, only what links led to may disappear.
        if here < known:
            return more_left_out or not self._in_place
        return here == known and not more_left_out

    def _is_superseded(self, one: SavedCheckpoint) -> bool:
        """Whether retention would delete it at once, as it did before, or as uploading takes longer than saving."""
        if self._in_place or one.name == LOOSE or one.place in self._complete:
            return False
        step = checkpoint_step(one.directory, one.name, [file.path for file in one.files])
        row = {"rank": one.rank, "name": one.name, "step": step, "created_at": one.modified / 1e9}
        return row in expired_checkpoints([*self._complete.values(), row], self._retention)

    def _try(
        self, one: SavedCheckpoint, writing: Set[Inode], end: Optional[RunEnd]
    ) -> Optional[str]:
        """Upload one; the error if it is due to the checkpoint and not to the store."""
        try:
            self._upload(one, writing, end)
        except Failure as error:
            if error.kind not in ("name", "changed"):
                raise
            self._refused[one.place] = error.summary
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            self._refused[one.place] = f"{one.name!r} is too long a name to be kept"
        return self._refused.get(one.place)

    def _upload(self, one: SavedCheckpoint, writing: Set[Inode], end: Optional[RunEnd]) -> None:
        due = self._watch.due(one, end)
        if end is not None and not due:
            raise Failure("changed", f"the run was killed while {one.name!r} may have been written")
        finished: Sequence[SavedFile] = one.files if end else self._watch.finished(one, writing)
        for file in finished:
            self._upload_file(one, file)
        if due and len(finished) == len(one.files):
            self._make_complete(one)
            self._refused.pop(one.place, None)

    def _version(self, one: SavedCheckpoint) -> int:
        manifest = self._complete.get(one.place)
        return int(manifest["version"]) + 1 if manifest else 1

    def _upload_file(self, one: SavedCheckpoint, file: SavedFile) -> UploadRecord:
        """The file in the store: of the version before, of an earlier attempt, or uploaded now."""
        place = (*one.place, file.path)
        for known in (self._of_manifest(one, file), self._journal.files.get(place)):
            if known is not None and known.is_of(file):
                return known
        version = 1 if self._in_place else self._version(one)
        key = self._kept.file_key(one.rank, one.name, file.path, version)
        uploaded = UploadRecord(file.size, file.modified, self._send(one, file, key), key)
        self._journal.add(place, uploaded)
        return uploaded

    def _of_manifest(self, one: SavedCheckpoint, file: SavedFile) -> Optional[UploadRecord]:
        for known in self._complete.get(one.place, {}).get("files", ()):
            if known["path"] == file.path:
                return UploadRecord(known["size"], known["modified"], known["sha256"], known["key"])
        return None

    def _send(self, one: SavedCheckpoint, file: SavedFile, key: str) -> str:
        """Read the file once, and upload it unless it stays in place; its digest. Failure ``changed`` if it changes meanwhile."""
        path = resolve_within(one.directory / file.path, one.top)
        if path is None:
            raise Failure("changed", f"{file.path!r} was removed while it was uploaded")
        with path.open("rb") as raw:
            stream = _HashingReader(raw)
            if self._in_place:
                while stream.read(_BLOCK):
                    pass
            else:
                self._kept.store.put_file(
                    key, cast(BinaryIO, stream), file.size, self._rate_limiter
                )
            found = os.fstat(raw.fileno())
        now = (stream.size, found.st_size, found.st_mtime_ns)
        if now != (file.size, file.size, file.modified):
            raise Failure("changed", f"{file.path!r} changed while it was uploaded")
        return stream.hexdigest()

    def _make_complete(self, one: SavedCheckpoint) -> None:
        """Write the manifest if the checkpoint is still as it was uploaded; then delete the version before."""
        uploaded = {file.path: self._upload_file(one, file) for file in one.files}
        if inspect_checkpoint(one.directory, one.rank, one.name) != one:
            raise Failure("changed", f"{one.name!r} changed while it was uploaded")
        before = self._complete.get(one.place)
        manifest: CheckpointManifest = dict(
            format=FORMAT,
            version=self._version(one),
            rank=one.rank,
            name=one.name,
            files=[{"path": path, **file._asdict()} for path, file in sorted(uploaded.items())],
            bytes=one.bytes,
            skipped_links=one.skipped_links,
            created_at=one.modified / 1e9,
            completed_at=time.time(),
            **{name: self._spec.get(name) for name in ("address", "project", "id", "number")},
            **describe_checkpoint(one.directory, one.name, uploaded),
        )
        self._kept.put(manifest)
        self._complete[one.place] = manifest
        if before and not self._in_place:
            for key in _object_keys(before) - _object_keys(manifest):
                self._kept.store.delete(key)

    def _retain(self, *, ended: bool) -> None:
        """Apply retention; in the job's own directory not before the job has ended."""
        rows = list(self._complete.values())
        if (self._in_place and not ended) or not expired_checkpoints(rows, self._retention):
            return
        spared = _symlink_targets(list_saved(self._local)) if self._in_place else set()
        for expired_checkpoint in expired_checkpoints(
            rows, self._retention, {*self._kept.leased(), *spared}
        ):
            self._kept.remove(expired_checkpoint)
            place = (expired_checkpoint["rank"], expired_checkpoint["name"])
            for file in expired_checkpoint["files"]:
                self._journal.drop((*place, file["path"]))
            del self._complete[place]

    def _drop_vanished(self, here: Set[CheckpointKey]) -> None:
        """Delete uploads of incomplete checkpoints that the job has removed: many trainers save under one name, and rename."""
        if not self._in_place:
            for place, known in list(self._journal.files.items()):
                if place[:2] not in here and place[:2] not in self._complete:
                    self._kept.store.delete(known.key)
                    self._journal.drop(place)

    def _say(self, left: List[SavedCheckpoint], error: Optional[str]) -> None:
        self._journal.say(SYNCING, error, [one.name for one in left])

    def _objects(self) -> List[ObjectStat]:
        top, rank = self._kept.prefix, f"rank-{self._rank}/"
        stored = self._kept.store.list
        return [*stored(f"{top}/{rank}"), *stored(f"{top}/{VERSIONS}/{rank}")]

    def _sweep(self) -> None:
        """Delete objects that no manifest names: of incomplete checkpoints and of older versions."""
        named = {key for manifest in self._kept.manifests() for key in _object_keys(manifest)}
        for stored in self._objects():
            if stored.key not in named:
                self._kept.store.delete(stored.key)

    def _forget_vanished(self) -> None:
        """Delete the manifests of checkpoints that the job itself has removed."""
        there = {one.place for one in list_saved(self._local)}
        for one in self._kept.manifests():
            if one["rank"] == self._rank and (one["rank"], one["name"]) not in there:
                self._kept.store.delete(self._kept.manifest_key(one["rank"], one["name"]))

    def _write_run(self, record: Mapping[str, Any]) -> None:
        known = {name: self._spec.get(name) for name in _RUN_KEYS}
        text = json.dumps({**known, **record}, sort_keys=True) + "\n"
        self._kept.store.put(f"{self._kept.prefix}/{self._run_file}", text.encode())

    @property
    def _run_file(self) -> str:
        return f"run-{self._rank}.json" if self._rank else "run.json"


def _object_keys(manifest: CheckpointManifest) -> Set[str]:
    return {file["key"] for file in manifest["files"]}


def _symlink_targets(saved: Sequence[SavedCheckpoint]) -> Set[CheckpointKey]:
    """Checkpoints that have files to which links of others lead."""
    meant = {file.inode for one in saved for file in one.files if file.linked}
    return {
        one.place
        for one in saved
        if any(file.inode in meant and not file.linked for file in one.files)
    }


class _HashingReader:
    """A stream that is hashed while it is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._stream.read(size)
        self._digest.update(data)
        self.size += len(data)
        return data

    def hexdigest(self) -> str:
        """The digest of all that was read."""
        return self._digest.hexdigest()
