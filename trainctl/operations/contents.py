"""Complete a plan: digests of images, and what changes inside of contents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from trainctl.base.lazy_dataclass import replace
from trainctl.base.parallel import each
from trainctl.errors import SourceError, StorageError, TrainctlError
from trainctl.inputs.code import SUBMODULE, CodeFile, CodeSource
from trainctl.inputs.image_digests import image_digest
from trainctl.manifest.checkout import run_git
from trainctl.model.address import Kind
from trainctl.model.contents import ContentChange, ContentDiff, ContentGroup
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.source_uri import parse_source
from trainctl.model.specs.image import Image
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.specs.runtime import CheckpointSelector
from trainctl.operations.workspace import Workspace
from trainctl.plan.changes import with_images
from trainctl.plan.values import Change, Plan
from trainctl.resources.weights import credential_of
from trainctl.weights.contents import compare_revisions, file_changes

_IMAGES_AT_ONCE = 10
_SECONDS = 10.0
"""Timeout of a registry; then the digest is unknown."""


def resolve_images(workspace: Workspace, plan: Plan, *, offline: bool) -> Plan:
    """Return a plan with the digests of its images, each asked for once."""
    jobs = {row.job for row in plan.images}
    images = {
        image.base_image: image
        for change in plan.changes
        if change.address in jobs and (image := change.job_spec.image)
    }
    if not images:
        return plan
    from trainctl.base.http.client import HttpClient

    client = HttpClient(read_timeout=_SECONDS)

    def find(image: Image) -> tuple[str, str | TrainctlError]:
        if offline and "@" not in image.base_image:
            return image.base_image, SourceError("offline")
        try:
            return image.base_image, image_digest(image, workspace.secrets, client)
        except TrainctlError as error:
            return image.base_image, error

    return with_images(plan, dict(each(find, images.values(), _IMAGES_AT_ONCE)))


_MOST, _PARALLEL = 10, 4
"""Weights, and trees of code, that are compared."""
_GIT_MODES = {"100644": "-", "100755": "x", "120000": "l"}
_NUMSTAT = "diff --numstat -z --relative --no-renames --no-ext-diff --no-textconv"
_END = "--end-of-options"


def with_contents(workspace: Workspace, plan: Plan, *, offline: bool) -> Plan:
    """Add what changes inside of the plan's resources; failures are notes."""
    moved = [] if offline else [change for change in plan.acting if _moves(change)][:_MOST]
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="contents") as pool:
        weights = pool.map(partial(_compare_weights, workspace, plan), moved)
        diffs = [*weights, *_code(workspace, plan)]
    digests = {row.job: row.digest for row in plan.images}
    diffs += [
        ContentDiff(change.address, "image", run.image_digest, digest)
        for change in plan.acting
        if (run := _last_run(change))
        and (digest := digests.get(change.address))
        and run.image_digest
        and run.image_digest != digest
    ]
    changes = {str(change.address): change for change in plan.changes} if plan.runs else {}
    for change in plan.acting:  # the runs whose checkpoints new runs load
        if change.address not in plan.runs:
            continue
        job = change.job_spec
        selectors = [load for load in job.runtime.loads if not load.metric]
        if job.resume_from == "latest":
            selectors.append(CheckpointSelector(job.project, str(change.address)))
        loads = [_selected(load, change, changes, plan) for load in selectors]
        if loads:
            diffs += [ContentDiff(change.address, "checkpoints", "", ", ".join(loads))]
    return replace(plan, contents=tuple(diffs))


def _moves(change: Change) -> bool:
    """Whether weights of the same location get another revision."""
    if change.address.kind is not Kind.WEIGHTS or not (change.before and change.after):
        return False
    sides = (change.before, change.after)
    places = [replace(parse_source(side["source"]), text="", revision=None) for side in sides]
    old, new = (side.get("revision") for side in sides)
    return places[0] == places[1] and bool(old and new) and old != new


def _compare_weights(workspace: Workspace, plan: Plan, change: Change) -> ContentDiff:
    old, new = (WeightsSpec.from_attributes(side or {}) for side in (change.before, change.after))
    diff = ContentDiff(change.address, "weights", str(old.revision), str(new.revision))
    try:
        if not new.uri.has_commits:
            # Compare the mirrored files with those upstream; those of equal size by sha256 if known.
            listing = workspace.mirror.store.load_listing(str(change.outputs.get("listing")))
            if listing is None or change.address not in plan.resolved:
                raise StorageError("the files of the last version are not in the mirror")
            sides = (listing.files, plan.resolved[change.address].files)
            before, now = (
                {file.path: (file.size, file.sha256) for file in files} for files in sides
            )
            return replace(diff, groups=(ContentGroup.of("files", file_changes(before, now)),))
        return compare_revisions(diff, (old, new), credential_of(new, workspace.secrets))
    except TrainctlError as error:
        return replace(diff, notes=(error.summary,))


def _code(workspace: Workspace, plan: Plan) -> Iterator[ContentDiff]:
    """Compare the code of new runs with the commits of the last ones, equal trees once."""
    changed: dict[tuple[str | None, ...], Change] = {}
    for change in plan.acting:
        run, code = _last_run(change), plan.code.get(change.address)
        if run and run.commit and run.code and code and code.digest != run.code:
            path = change.job_spec.code.path
            changed.setdefault((path, run.commit, run.code, code.digest), change)
    for (folder, commit, before, after), change in list(changed.items())[:_MOST]:
        files = plan.code_files.get(str(after))
        if files is None or change.job_spec.code.external_dirs:
            continue
        diff = ContentDiff(change.address, "code", str(before), str(after))
        root = (workspace.settings.directory / str(folder)).resolve()
        try:
            yield compare_code(diff, root, str(commit), files)
        except (TrainctlError, ValueError, OSError):
            yield replace(diff, notes=(f"git does not have commit {commit}",))


def _last_run(change: Change | None) -> RunRecord | None:
    runs = change.outputs.get("runs") if change else None
    return RunRecord.from_json(runs[-1]) if runs else None


def _selected(
    load: CheckpointSelector, change: Change, changes: dict[str, Change], plan: Plan
) -> str:
    """Return the run to load from as far as known, if possible as ``PROJECT/JOB/NUMBER-ID``."""
    source = changes.get(load.job or "")
    if source and source is not change and source.address in plan.runs and not load.run:
        return f"the new run of {load.job}"
    runs = [*map(RunRecord.from_json, source.outputs.get("runs", ()))] if source else []
    run = next((run for run in reversed(runs) if run.status is not RunStatus.DEPLOY_FAILED), None)
    name = load.run or (f"{run.number}-{run.id}" if run else "newest run")
    return "/".join(filter(None, (load.project, (load.job or "").removeprefix("job."), name)))


def _committed(root: Path, commit: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, mode and id of all files of a commit, also in submodules."""
    for row in (run_git(root, "ls-tree", "-r", "-z", _END, commit, ".") or b"").split(b"\0")[:-1]:
        head, path = os.fsdecode(row).split("\t", 1)
        mode, _, blob = head.split()
        if mode == SUBMODULE and (root / path / ".git").exists():
            yield from ((f"{path}/{name}", m, b) for name, m, b in _committed(root / path, blob))
        yield path, mode, blob


def compare_code(diff: ContentDiff, root: Path, commit: str, now: Mapping[str, str]) -> ContentDiff:
    """Compare ``CodeSource.blobs`` at ``root`` with a commit; TrainctlError if git fails."""
    old, lines = {}, {}
    for path, mode, blob in _committed(root, commit):
        # Files that exist, but are not part of the code, are ignored.
        if mode in _GIT_MODES and (path in now or not os.path.lexists(root / path)):
            old[path] = f"{_GIT_MODES[mode]} {blob}"
    for row in (run_git(root, *_NUMSTAT.split(), _END, commit, "--", ".") or b"").split(b"\0")[:-1]:
        added, removed, name = row.split(b"\t", 2)
        if added.isdigit():  # not of binary files
            lines[os.fsdecode(name)] = int(added), int(removed)
    rows = []
    for path in sorted(path for path in {*old, *now} if old.get(path) != now.get(path)):
        plus, minus = lines.get(path, (0, 0))
        if path not in lines and path not in old and (root / path).is_file():  # not in git yet
            plus = (root / path).read_bytes().count(b"\n")
        counts = minus if path in old else None, plus if path in now else None
        rows.append(ContentChange(path, *counts))
    files = tuple(CodeFile(path, blob[0], 0, blob[2:]) for path, blob in old.items())
    exact = CodeSource(root, files).tree.digest == diff.before
    note = f"the last run had changes since commit {commit[:12]}, with which its code is compared"
    groups = (ContentGroup.of("files", rows),)
    return replace(diff, groups=groups, notes=() if exact else (note,))
