"""The uploader: brings a run's checkpoints to their store while the job goes on. See DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from pathlib import Path
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    cast,
)

from trainctl.base.checkpoints.directory import DirectoryStore
from trainctl.base.checkpoints.manifests import VERSIONS, Manifest, RunCheckpoints, new_manifest
from trainctl.base.checkpoints.ranking import LOOSE, doomed
from trainctl.base.checkpoints.store import Store
from trainctl.base.checkpoints.stores import open_store
from trainctl.base.failure import Failure
from trainctl.base.files import real_file
from trainctl.base.pace import Pace
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.checkpoints.describe import describe, known_by
from trainctl.node.checkpoints.watch import End, Watch
from trainctl.node.runs.record import Run
from trainctl.node.runs.saved import File, Saved, linked_into, look, saved_in
from trainctl.node.runs.uploads import COMPLETED, SYNCING, Uploaded, Uploads

_BLOCK = 2**20


class Uploader:
    """One run's. ``look`` does what is due and returns; everything it needs to go on after a kill is on disk."""

    def __init__(self, run: Run, spec: RunSpec, secrets: Mapping[str, str], data: Path) -> None:
        self._spec = spec
        settings = spec["store"]
        self._settings = settings
        self._in_place = settings.get("url") is None
        store: Store = (
            DirectoryStore(data / "checkpoints")
            if self._in_place
            else open_store(settings, secrets)
        )
        self._kept = RunCheckpoints(store, settings["prefix"])
        self._local = data / "checkpoints" / self._kept.prefix
        self._rank = int(spec["rank"])
        self._uploads = Uploads(run.directory)
        self._pace = Pace(settings.get("max_rate"))
        self._watch = Watch(settings)
        self._complete: Optional[Dict[Tuple[int, str], Manifest]] = None
        self._refused: Dict[Tuple[int, str], str] = {}
        self._unretained = True

    def announce(self) -> None:
        """Write ``run.json`` into the store: Failure if checkpoints could not be kept there."""
        if not self._in_place:
            self._write_run({"status": "TRAINING_JOB_DEPLOYING"})

    def look(self, end: Optional[End] = None) -> bool:
        """One round: bring finished files, make manifests of what is complete. With ``end``, whether nothing is left to do."""
        if self._complete is None:
            self._complete = self._pick_up()
        self._uploads.beat()
        saved = self._here()
        self._watch.look(saved, end)
        pending = [one for one in saved if self._is_wanted(one)]
        writing = set() if end else self._watch.open_files(pending)
        failures = [self._try(one, writing, end) for one in pending]
        left = [one for one in pending if not self._is_complete(one)]
        self._drop_vanished()
        self._retain(ended=end is not None)
        self._say(left, next(filter(None, failures), None))
        return all((one.rank, one.name) in self._refused for one in left)

    def finish(self, end: End) -> None:
        """After the last round of an ended run: nothing unfinished stays in the store, and ``run.json`` says the end."""
        if self._in_place:
            self._forget_vanished()
            self._kept.store.abandon(f"{self._kept.prefix}/")
        else:
            self._sweep()
            self._kept.store.abandon(f"{self._kept.prefix}/rank-{self._rank}/")
            self._kept.store.abandon(f"{self._kept.prefix}/{VERSIONS}/rank-{self._rank}/")
            self._write_run(end.record)
        self._uploads.say(COMPLETED, self._refusals(), [name for _, name in sorted(self._refused)])

    def trouble(self, error: str) -> None:
        """Say why it can't go on, at the moment or at all, and what is left; the store, which may be silent, is not asked."""
        if self._complete is None:
            self._uploads.load()
        known, here = set(self._uploads.pending), self._here()
        left = [one for one in here if one.name in known or not self._is_brought(one)]
        self._say([one for one in left if self._is_wanted(one)], error)

    @property
    def watched_until(self) -> float:
        """When an uploader last looked, in Unix seconds."""
        return self._uploads.beaten

    def _pick_up(self) -> Dict[Tuple[int, str], Manifest]:
        """What an earlier uploader has done, as far as the store bears it out."""
        complete = {(one["rank"], one["name"]): one for one in self._kept.manifests()}
        complete = {place: one for place, one in complete.items() if place[0] == self._rank}
        self._uploads.load()
        if not self._in_place:
            sizes = {stored.key: stored.size for stored in self._objects()}
            for place, known in list(self._uploads.files.items()):
                if sizes.get(known.key) != known.size:
                    self._uploads.drop(place)
        return complete

    def _here(self) -> List[Saved]:
        return [one for one in saved_in(self._local) if one.rank == self._rank]

    def _is_wanted(self, one: Saved) -> bool:
        return not (self._is_complete(one) or self._superseded(one))

    def _is_brought(self, one: Saved) -> bool:
        """Whether every file of it has been in the store, be it removed from there since."""
        places = ((one.rank, one.name, file.path) for file in one.files)
        return all(place in self._uploads.files for place in places)

    def _is_complete(self, one: Saved) -> bool:
        """Whether a manifest says what lies here, and nothing more is gone than what stays kept."""
        manifest = (self._complete or {}).get((one.rank, one.name))
        if manifest is None:
            return False
        known = {(file["path"], file["size"], file["modified"]) for file in manifest["files"]}
        here = {(file.path, file.size, file.modified) for file in one.files}
        more_left_out = one.left_out > manifest.get("left_out", 0)
        # Where the job has removed some they stay kept; where they only lie where it saved them, that is those that links led to.
        if here < known:
            return more_left_out or not self._in_place
        return here == known and not more_left_out

    def _superseded(self, one: Saved) -> bool:
        """Whether retention would remove it as soon as it were complete: it was, or uploading takes longer than saving."""
        if self._in_place or self._rules == (None, None) or one.name == LOOSE:
            return False
        complete = self._complete or {}
        if (one.rank, one.name) in complete:
            return False
        known = known_by(one.directory, one.name, [file.path for file in one.files])
        this = {"rank": one.rank, "created_at": one.modified / 1e9, **known}
        return this in doomed([*complete.values(), this], *self._rules)

    def _try(self, one: Saved, writing: Set[Tuple[int, int]], end: Optional[End]) -> Optional[str]:
        """Bring one; what is wrong with it, where that is its own fault and not the store's."""
        try:
            self._bring(one, writing, end)
        except Failure as error:
            if error.kind not in ("name", "changed"):
                raise
            self._refused[one.rank, one.name] = error.summary
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            self._refused[one.rank, one.name] = f"{one.name!r} is too long a name to be kept"
        return self._refused.get((one.rank, one.name))

    def _bring(self, one: Saved, writing: Set[Tuple[int, int]], end: Optional[End]) -> None:
        if end is not None:
            self._watch.refuse_unfinished(one, end)
        finished: Sequence[File] = one.files if end else self._watch.finished(one, writing)
        for file in finished:
            self._upload(one, file)
        if len(finished) == len(one.files) and self._watch.due(one, end):
            self._make_complete(one)
            self._refused.pop((one.rank, one.name), None)

    def _version(self, one: Saved) -> int:
        manifest = (self._complete or {}).get((one.rank, one.name))
        return int(manifest["version"]) + 1 if manifest else 1

    def _upload(self, one: Saved, file: File) -> Uploaded:
        """The file as it is in the store: from the version before, from an earlier attempt, or brought there now."""
        for known in (
            self._of_manifest(one, file),
            self._uploads.files.get((one.rank, one.name, file.path)),
        ):
            if known is not None and known.is_of(file):
                return known
        version = 1 if self._in_place else self._version(one)
        key = self._kept.file_key(one.rank, one.name, file.path, version)
        sha256 = self._send(one, file, key)
        uploaded = Uploaded(file.size, file.modified, sha256, key)
        self._uploads.add((one.rank, one.name, file.path), uploaded)
        return uploaded

    def _of_manifest(self, one: Saved, file: File) -> Optional[Uploaded]:
        manifest = (self._complete or {}).get((one.rank, one.name))
        for known in manifest["files"] if manifest else ():
            if known["path"] == file.path:
                return Uploaded(known["size"], known["modified"], known["sha256"], known["key"])
        return None

    def _send(self, one: Saved, file: File, key: str) -> str:
        """Bring the file; its digest."""
        if self._in_place:
            return self._read(one, file, _drain)
        return self._read(
            one,
            file,
            lambda stream: self._kept.store.put_file(key, stream, file.size, self._pace),
        )

    def _read(self, one: Saved, file: File, take: Callable[[BinaryIO], None]) -> str:
        """Read the file once, hashing it on the way. Failure ``changed`` if it isn't the same afterwards."""
        path = real_file(one.directory / file.path, one.top)
        if path is None:
            raise Failure("changed", f"{file.path!r} was removed while it was uploaded")
        with path.open("rb") as raw:
            stream = _Hashing(raw)
            take(cast(BinaryIO, stream))
            found = os.fstat(raw.fileno())
            if stream.size != file.size or (found.st_size, found.st_mtime_ns) != (
                file.size,
                file.modified,
            ):
                raise Failure("changed", f"{file.path!r} changed while it was uploaded")
        return stream.hexdigest()

    def _make_complete(self, one: Saved) -> None:
        """Write the manifest, if what was brought is what lies here; only then does the version before go."""
        uploaded = {file.path: self._upload(one, file) for file in one.files}
        if look(one.directory, one.rank, one.name) != one:
            raise Failure("changed", f"{one.name!r} changed while it was uploaded")
        before = (self._complete or {}).get((one.rank, one.name))
        manifest = new_manifest(
            version=self._version(one),
            rank=one.rank,
            name=one.name,
            files=[{"path": path, **file._asdict()} for path, file in sorted(uploaded.items())],
            bytes=one.bytes,
            left_out=one.left_out,
            created_at=one.modified / 1e9,
            completed_at=time.time(),
            **{name: self._spec.get(name) for name in ("address", "project", "id", "number")},
            **describe(one.directory, one.name, uploaded),
        )
        self._kept.put(manifest)
        assert self._complete is not None  # noqa: S101 - look() has filled it
        self._complete[one.rank, one.name] = manifest
        self._unretained = True
        if before and not self._in_place:
            for key in {file["key"] for file in before["files"]} - {
                file["key"] for file in manifest["files"]
            }:
                self._kept.store.delete(key)

    @property
    def _rules(self) -> Tuple[Optional[int], Optional[int]]:
        return self._settings.get("keep_last"), self._settings.get("keep_every")

    def _retain(self, *, ended: bool) -> None:
        """Apply retention. Where checkpoints lie in the job's own directory, not before the job has ended."""
        if self._rules == (None, None) or (not ended if self._in_place else not self._unretained):
            return
        complete = self._complete or {}
        going = {
            (one["rank"], one["name"]): one
            for one in doomed(list(complete.values()), *self._rules, self._kept.leased())
        }
        if self._in_place:
            for place in linked_into(saved_in(self._local), set(going)):
                del going[place]
        for place, one in going.items():
            self._kept.remove(one)
            for file in one["files"]:
                self._uploads.drop((*place, file["path"]))
            del complete[place]
        self._unretained = bool(doomed(list(complete.values()), *self._rules))

    def _drop_vanished(self) -> None:
        """Remove from the store what never became complete and is gone here: many trainers save under one name, and rename."""
        if self._in_place:
            return
        brought = {place[:2] for place in self._uploads.files} - (self._complete or {}).keys()
        gone = set(self._watch.gone(brought))
        for place in [place for place in self._uploads.files if place[:2] in gone]:
            self._kept.store.delete(self._uploads.files[place].key)
            self._uploads.drop(place)

    def _say(self, left: List[Saved], error: Optional[str]) -> None:
        self._uploads.say(SYNCING, error, [one.name for one in left])

    def _refusals(self) -> Optional[str]:
        return "; ".join(self._refused[place] for place in sorted(self._refused)) or None

    def _objects(self) -> List[Any]:
        store, prefix = self._kept.store, self._kept.prefix
        return [
            *store.list(f"{prefix}/rank-{self._rank}/"),
            *store.list(f"{prefix}/{VERSIONS}/rank-{self._rank}/"),
        ]

    def _sweep(self) -> None:
        """Remove objects that no manifest names: of checkpoints that never became complete, or of older versions."""
        named = {file["key"] for one in self._kept.manifests() for file in one["files"]}
        for stored in self._objects():
            if stored.key not in named:
                self._kept.store.delete(stored.key)

    def _forget_vanished(self) -> None:
        """Manifests of checkpoints that the job itself has removed."""
        there = {(one.rank, one.name) for one in saved_in(self._local)}
        for one in self._kept.manifests():
            if one["rank"] == self._rank and (one["rank"], one["name"]) not in there:
                self._kept.store.delete(self._kept.manifest_key(one["rank"], one["name"]))

    def _write_run(self, record: Mapping[str, Any]) -> None:
        known = {
            name: self._spec.get(name)
            for name in (
                "key",
                "id",
                "number",
                "generation",
                "lineage",
                "address",
                "project",
                "rank",
            )
        }
        name = "run.json" if self._rank == 0 else f"run-{self._rank}.json"
        text = json.dumps({**known, **record}, sort_keys=True) + "\n"
        self._kept.store.put(f"{self._kept.prefix}/{name}", text.encode())


def _drain(stream: BinaryIO) -> None:
    while stream.read(_BLOCK):
        pass


class _Hashing:
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
        """Of all that was read."""
        return self._digest.hexdigest()
