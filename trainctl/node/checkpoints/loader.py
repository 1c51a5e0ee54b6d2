"""Place the checkpoints that a run starts from, read-only in its directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from trainctl.base.checkpoints.layout import age_key, checkpoint_class, folder_of, newest_checkpoint
from trainctl.base.checkpoints.manifests import CheckpointManifest, RunCheckpoints, list_runs
from trainctl.base.checkpoints.stores import CheckpointStore, DirectoryCheckpointStore, store_errors
from trainctl.base.filesystem.files import make_directory, remove_tree
from trainctl.base.protocol.runs import CheckpointLoad, RunSpec
from trainctl.errors import SourceMismatch, TrainctlError, UnknownOnNode
from trainctl.node.checkpoints.metadata import place_pointers
from trainctl.node.checkpoints.uploader import open_store_for
from trainctl.node.checkpoints.uploader_process import runs_to_upload, upload_remaining
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.blob_files import stamp


def load_checkpoints(
    run: NodeRun, spec: RunSpec, secrets: Mapping[str, str], data: Path
) -> List[Dict[str, Any]]:
    """Place the checkpoints named by ``spec["load"]`` and return a row for each.

    They are stored below the run's ``loaded/<job>/rank-<n>/<checkpoint>``, next to the small files by which trainers
    find them. Checkpoints that an earlier run of the job left on this node are uploaded first. TrainctlError if a reference
    that is not ``optional`` matches nothing.
    """
    references = spec.get("load") or []
    if not references:
        return []
    location = spec.get("store") or {}
    with store_errors(location):
        for other in runs_to_upload(run, spec):
            upload_remaining(other, secrets, data)
    remove_tree(run.loaded)
    make_directory(run.loaded)
    rows: List[Dict[str, Any]] = []
    for reference in references:
        place = reference.get("place") or location
        with store_errors(place):
            checkpoints = _find(open_store_for(place, data, secrets), reference)
        for source, manifest in checkpoints:
            job = str((reference["runs"] and reference["job"]) or source.prefix.split("/")[1])
            rank = Path(job, f"rank-{manifest['rank']}")
            _place(source, manifest, run.loaded / rank, data / "checkpoints")
            visible = Path(spec["environment"].get("BT_LOAD_CHECKPOINT_DIR") or run.loaded, rank)
            pointers = place_pointers(manifest, run.loaded / rank, visible)
            row = {name: manifest.get(name) for name in ("rank", "name", "step", "version")}
            rows.append({"run": source.prefix, **row, "pointers": pointers})
    return rows


def _find(
    store: CheckpointStore, reference: CheckpointLoad
) -> List[Tuple[RunCheckpoints, CheckpointManifest]]:
    """Ranks of the newest matching checkpoint: the newest of each job, and of these the last written."""
    jobs: Dict[str, Dict[RunCheckpoints, List[CheckpointManifest]]] = {}
    name = reference["name"]
    projects = {path.split("/")[0] for path in reference["runs"]} or {reference["project"]}
    for source in (run for project in projects for run in list_runs(store, project)):
        _, job, run_name = source.prefix.split("/")
        runs = reference["runs"]
        if runs:
            if source.prefix not in runs:
                continue
            job = str(reference["job"])
        elif reference["job"] not in (None, job):
            continue
        if reference["run"] not in (None, run_name.partition("-")[2]):
            continue
        manifests = [
            manifest for manifest in source.manifests() if name in (None, manifest["name"])
        ]
        jobs.setdefault(job, {})[source] = manifests
    force = reference["force"]
    found = (newest_checkpoint(runs, force=force) for runs in jobs.values())
    newest = [ranks for ranks in found if ranks is not None]
    if not newest:
        if reference["optional"]:
            return []
        words = [repr(name)] if name else []
        words += [f"of run {reference['run']}"] if reference["run"] else []
        words += [f"of job {reference['job']}"] if reference["job"] else []
        words.append(f"in project {reference['project']}")
        names = [
            f"{run.prefix}: {manifest['name']}"
            + (
                f" (unfinished: {manifest['unfinished']}; force: true uses it)"
                if manifest.get("unfinished")
                else ""
            )
            for run in list_runs(store, reference["project"])
            for manifest in run.manifests()
        ]
        raise UnknownOnNode(
            f"no complete checkpoint {' '.join(words)} found",
            f"Available: {', '.join(names[-10:])}." if names else "The project has no checkpoints.",
        )
    source, ranks = max(
        newest, key=lambda entry: (min(checkpoint_class(entry[1][0]), 1), age_key(entry[1][0]))
    )
    return [(source, manifest) for manifest in ranks]


def _place(source: RunCheckpoints, manifest: CheckpointManifest, rank: Path, local: Path) -> None:
    """Fill the directory of a rank with hard links to local files, else verified copies."""
    below = Path(f"rank-{manifest['rank']}", folder_of(manifest))
    target = rank.parent / below
    make_directory(target)
    lease: Optional[str] = None
    with contextlib.suppress(TrainctlError, OSError):  # the store may be read-only
        lease = source.lease(manifest["rank"], manifest["name"])
    try:
        for file in manifest["files"]:
            path = target / file["path"]
            make_directory(path.parent)
            copies = [local / source.prefix / below / file["path"]]
            if isinstance(source.store, DirectoryCheckpointStore):
                copies.append(source.store.root / file["key"])
            if not any(_link(copy, path, file) for copy in copies):
                _fetch(source.store, file, path)
    finally:
        if lease is not None:
            with contextlib.suppress(TrainctlError, OSError):
                source.store.delete(lease)


def _link(source: Path, path: Path, file: Mapping[str, Any]) -> bool:
    """Hard-link the file that was uploaded, or its delivered copy, if it is still here and unchanged."""
    times = (file["modified"], stamp(file["sha256"]) * 10**9)
    try:
        status = source.lstat()
        if status.st_size != file["size"] or status.st_mtime_ns not in times:
            return False
        os.link(source, path, follow_symlinks=False)
    except OSError:
        return False
    return path.stat().st_mtime_ns in times


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
        raise SourceMismatch(f"{file['key']!r} in the store is corrupt: digest mismatch")
    path.chmod(0o444)
