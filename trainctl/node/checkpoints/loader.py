"""Checkpoints that a run begins with: found when it starts, placed where its job looks for them, read-only."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from trainctl.base.checkpoints.manifests import CheckpointManifest, RunCheckpoints, list_runs
from trainctl.base.checkpoints.ranking import age_key, checkpoint_class, newest_checkpoint
from trainctl.base.checkpoints.stores import CheckpointStore, store_errors
from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import make_directory, remove_tree
from trainctl.base.protocol.spec import CheckpointLoad, RunSpec
from trainctl.node.checkpoints.uploader import open_store_for
from trainctl.node.checkpoints.uploader_process import runs_to_upload, upload_remaining
from trainctl.node.runs.record import NodeRun


class _LoadableCheckpoint(NamedTuple):
    kept: RunCheckpoints
    manifest: CheckpointManifest


def load_checkpoints(
    run: NodeRun, spec: RunSpec, secrets: Mapping[str, str], data: Path
) -> List[Dict[str, Any]]:
    """Place what ``spec["load"]`` refers to below the run's ``loaded/<job>/rank-<n>/<checkpoint>``; what it was.

    What an earlier run of the job left without its uploader is brought to the store first. Failure if there is
    nothing, but for a reference that is ``optional``.
    """
    references = spec.get("load") or []
    if not references:
        return []
    place = spec.get("store") or {}
    with store_errors(place):
        for other in runs_to_upload(run, spec):
            upload_remaining(other, secrets, data)
    store = open_store_for(place, data, secrets)
    remove_tree(run.loaded)
    make_directory(run.loaded)
    said: List[Dict[str, Any]] = []
    for reference in references:
        with store_errors(place):
            found = _find(store, reference)
        for one in found:
            job = one.kept.prefix.split("/")[1]
            target = run.loaded / job / f"rank-{one.manifest['rank']}" / one.manifest["name"]
            _place(one, target, data / "checkpoints")
            named = {name: one.manifest.get(name) for name in ("rank", "name", "step", "version")}
            said.append({"run": one.kept.prefix, **named})
    return said


def _find(store: CheckpointStore, reference: CheckpointLoad) -> List[_LoadableCheckpoint]:
    """The ranks of the newest checkpoint that the reference can mean: the newest of each job, of those the last written."""
    jobs: Dict[str, Dict[RunCheckpoints, List[CheckpointManifest]]] = {}
    wanted = reference["name"]
    for kept in list_runs(store, reference["project"]):
        _, job, run = kept.prefix.split("/")
        if reference["job"] not in (None, job):
            continue
        if reference["run"] not in (None, run.partition("-")[2]):
            continue
        meant = [manifest for manifest in kept.manifests() if wanted in (None, manifest["name"])]
        jobs.setdefault(job, {})[kept] = meant
    best = [found for found in map(newest_checkpoint, jobs.values()) if found is not None]
    if not best:
        if reference["optional"]:
            return []
        raise Failure(
            "missing",
            f"there is no complete checkpoint {_reference_text(reference)}",
            _known_text(store, reference),
        )
    kept, ranks = max(
        best, key=lambda one: (min(checkpoint_class(one[1][0]), 1), age_key(one[1][0]))
    )
    return [_LoadableCheckpoint(kept, rank) for rank in ranks]


def _reference_text(reference: CheckpointLoad) -> str:
    parts = [repr(reference["name"])] if reference["name"] else []
    parts += [f"of run {reference['run']}"] if reference["run"] else []
    parts += [f"of job {reference['job']}"] if reference["job"] else []
    return " ".join([*parts, f"in project {reference['project']}"])


def _known_text(store: CheckpointStore, reference: CheckpointLoad) -> str:
    names = [
        f"{list_run.prefix}: {manifest['name']}"
        for list_run in list_runs(store, reference["project"])
        for manifest in list_run.manifests()
    ]
    return f"There are: {', '.join(names[-10:])}." if names else "The project has none yet."


def _place(one: _LoadableCheckpoint, target: Path, local: Path) -> None:
    """Fill a directory with the checkpoint's files: links to those of this node, else verified copies."""
    make_directory(target)
    lease: Optional[str] = None
    with contextlib.suppress(Failure, OSError):  # one may read where one may not write
        lease = one.kept.lease(one.manifest["rank"], one.manifest["name"])
    try:
        for file in one.manifest["files"]:
            path = target / file["path"]
            make_directory(path.parent)
            folder = local / one.kept.prefix / f"rank-{one.manifest['rank']}" / one.manifest["name"]
            if not _link(folder / file["path"], path, file):
                _fetch(one.kept.store, file, path)
    finally:
        if lease is not None:
            with contextlib.suppress(Failure, OSError):
                one.kept.store.delete(lease)


def _link(source: Path, path: Path, file: Mapping[str, Any]) -> bool:
    """A hard link to the file that the manifest was made from, if it is still here and unchanged."""
    try:
        found = source.lstat()
        if (found.st_size, found.st_mtime_ns) != (file["size"], file["modified"]):
            return False
        os.link(source, path, follow_symlinks=False)
    except OSError:
        return False
    return bool(path.stat().st_mtime_ns == file["modified"])


def _fetch(store: CheckpointStore, file: Mapping[str, Any], path: Path) -> None:
    digest = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:

        def write(data: bytes) -> None:
            digest.update(data)
            stream.write(data)

        store.read(file["key"], 0, write)
    if digest.hexdigest() != file["sha256"]:
        raise Failure("wrong", f"{file['key']!r} in the store is not what was kept there")
    path.chmod(0o444)
