"""Checkpoints of a run: list, presign, upload, download; and what a destroy leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trainctl.base.checkpoints.ranking import recency_key
from trainctl.base.json import digest
from trainctl.base.parallel import each
from trainctl.base.protocol.checkpoints import CheckpointObjectRange
from trainctl.errors import NodeError, NodeUnreachable, StorageError, UsageError
from trainctl.jobs.environment import checkpoint_directory
from trainctl.model.address import Address, Kind
from trainctl.model.reports import (
    Checkpoint,
    CheckpointFile,
    RetainedData,
    UnreachableNode,
    unreachable_nodes,
)
from trainctl.operations.jobs.code import require_absent
from trainctl.operations.jobs.runs import JobRun, run_control, with_unrecorded_runs
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import node_named
from trainctl.resources.checkpoints import CheckpointClient
from trainctl.resources.run_control import runs_of
from trainctl.weights.mirrors import Mirror, directory_of

_CHECKPOINT_FIELDS = (
    "name", "rank", "step", "bytes", "files", "created_at", "state", "url", "type", "base_model", "lora_rank",
    "skipped_links", "tensors", "parameters", "dtypes",
)  # fmt: skip

_AT_ONCE = 8
"""How many runs are asked about at the same time."""


def checkpoints_of(workspace: Workspace, run: JobRun) -> CheckpointClient:
    """A way to a run's checkpoints, where they are kept and where they were made."""
    return CheckpointClient(
        run_control(workspace), workspace.checkpoints, run.job.address, run.project, run.record
    )


def complete_rows(workspace: Workspace, run: JobRun) -> list[dict[str, Any]]:
    """The rows of a run's complete checkpoints. NodeUnreachable if those of some rank are unknown."""
    rows = checkpoints_of(workspace, run).rows()
    return [row for row in rows if row["state"] == "complete"]


def known_checkpoints(
    workspace: Workspace, run: JobRun
) -> tuple[list[Checkpoint], tuple[UnreachableNode, ...]]:
    """The known checkpoints of a run, and the unreachable nodes; NodeUnreachable if all are."""
    rows, unreachable = checkpoints_of(workspace, run).survey()
    return _ordered(rows, run), unreachable


def list_checkpoints(
    workspace: Workspace, runs: Sequence[JobRun]
) -> tuple[list[Checkpoint], tuple[UnreachableNode, ...]]:
    """As ``known_checkpoints``, of several runs that are asked about at once, in their order; a node that is away is named once."""

    def ask(
        run: JobRun,
    ) -> tuple[list[Checkpoint], tuple[UnreachableNode, ...], NodeUnreachable | None]:
        try:
            return *known_checkpoints(workspace, run), None
        except NodeUnreachable as error:
            errors_by_rank = {rank.rank: error for rank in run.record.ranks}
            return [], unreachable_nodes(run.record, errors_by_rank), error

    answers = each(ask, runs, _AT_ONCE)
    if all(error is not None for _, _, error in answers):
        raise next(error for _, _, error in answers if error is not None)
    unreachable = dict.fromkeys(one for _, missing, _ in answers for one in missing)
    return [one for found, _, _ in answers for one in found], tuple(unreachable)


def select_checkpoint(
    rows: list[dict[str, Any]], run: JobRun, name: str | None, rank: int
) -> dict[str, Any]:
    """The row that is meant: the newest complete one of a rank, or the one of that name; UsageError says what there is."""
    complete = [row for row in rows if row["rank"] == rank and row["state"] == "complete"]
    candidates = [row for row in complete if name in (None, row["name"])]
    if not candidates:
        known = ", ".join(sorted({_checkpoint_label(row) for row in rows})) or "none"
        what = f"complete checkpoint {name}" if name else "complete checkpoint"
        raise UsageError(
            f"run {run.record.id} of {run.job.address} has no {what} of rank {rank}",
            f"Available: {known}.",
            code="checkpoint-not-found",
        )
    return max(candidates, key=recency_key)


def artifacts(
    workspace: Workspace, run: JobRun, name: str | None, expires_seconds: int
) -> list[CheckpointFile]:
    """Every file of the run's complete checkpoints, or of the named one, each with a URL from which it can be had."""
    client = checkpoints_of(workspace, run)
    rows = client.rows(brief=False)
    complete = [row for row in rows if row["state"] == "complete" and name in (None, row["name"])]
    if not complete:
        select_checkpoint(rows, run, name, 0)  # says what there is
    return [
        CheckpointFile(
            url=client.url(file["key"], expires_seconds),
            path=file["path"] if row["name"] == "." else f"{row['name']}/{file['path']}",
            rank=row["rank"],
            bytes=file["size"],
            modified=file["modified"] / 1e9,
        )
        for row in complete
        for file in row["files"]
    ]


def upload_checkpoints(workspace: Workspace, run: JobRun) -> Mapping[str, Any]:
    """Bring what an ended run left behind to the store; how it stands: ``{state, error, pending}``."""
    return checkpoints_of(workspace, run).upload()


def checkpoint_from(row: Mapping[str, Any], run: JobRun) -> Checkpoint:
    """A row as a value. NodeError for a name that would lead elsewhere: it becomes a directory here."""
    name = str(row["name"])
    if name in ("", "..") or "/" in name:
        raise NodeError(
            f"invalid checkpoint name {name!r} from {row.get('node') or 'the store'}",
            "The name is not a valid file name. Check the store.",
        )
    known = {key: row[key] for key in _CHECKPOINT_FIELDS if key in row}
    made_by = {"job": str(run.job.address), "run": run.record.id}
    return Checkpoint(**{**made_by, "step": None, **known})


def _ordered(rows: Iterable[Mapping[str, Any]], run: JobRun) -> list[Checkpoint]:
    found = [checkpoint_from(row, run) for row in rows]
    return sorted(found, key=lambda one: (one.rank, one.created_at, one.step or 0, one.name))


def _checkpoint_label(row: Mapping[str, Any]) -> str:
    return str(row["name"]) if row["state"] == "complete" else f"{row['name']} ({row['state']})"


_BLOCK = 2**20


class DownloadedCheckpoint(NamedTuple):
    """Where it lies now, and how many links in it led to what was never kept."""

    place: Path
    skipped_links: int


def download_checkpoint(
    workspace: Workspace, run: JobRun, target: Path, *, name: str | None = None, rank: int = 0
) -> DownloadedCheckpoint:
    """Copy a checkpoint (the newest complete one by default) into ``target/<name>``, whole or not at all.

    What an earlier attempt has brought, and is right, isn't fetched again. Only the rank's own node is needed: whether others have
    theirs whole, too, counts as far as they can be asked. UsageError if there is no such
    checkpoint or something is in the way; StorageError if a file isn't what it was when it was kept.
    """
    client = checkpoints_of(workspace, run)
    chosen = select_checkpoint(client.rows(brief=False, of=rank), run, name, rank)
    checkpoint_from(chosen, run)
    place = target / (f"checkpoint-{run.record.id}" if chosen["name"] == "." else chosen["name"])
    require_absent(place)
    unfinished = target / f".download-{digest([chosen['url'], chosen['files']])[7:23]}"
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        with client.leased(rank, chosen["name"]):
            _fetch(client, chosen, unfinished)
        unfinished.rename(place)
    except OSError as error:
        raise StorageError(f"cannot copy {chosen['name']} to {target}: {error}") from error
    return DownloadedCheckpoint(place, int(chosen.get("skipped_links") or 0))


def _fetch(client: CheckpointClient, chosen: Mapping[str, Any], directory: Path) -> None:
    """Bring every file into the directory, those that are there and right left alone."""
    wanted = []
    for file in chosen["files"]:
        path = directory / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        have = path.stat().st_size if path.is_file() else 0
        if have == file["size"] and path.is_file() and _sha256(path) == file["sha256"]:
            continue
        wanted.append((file, path, have if have < file["size"] else 0))
    if not wanted:
        return
    writer = _CheckpointWriter(wanted)
    try:
        objects: list[CheckpointObjectRange] = [
            {"key": file["key"], "offset": offset} for file, _, offset in wanted
        ]
        client.read(chosen["rank"], objects, writer.take)
    finally:
        writer.close()
    for file, path, _ in wanted:
        if path.stat().st_size != file["size"] or _sha256(path) != file["sha256"]:
            path.unlink()
            raise StorageError(
                f"{file['path']} of checkpoint {chosen['name']} is corrupt",
                "Files that are intact are kept. Try again; if the error persists, the store has been modified.",
            )


class _CheckpointWriter:
    """Bytes of several files, one after another, put where they belong."""

    def __init__(self, wanted: Sequence[tuple[Mapping[str, Any], Path, int]]) -> None:
        self._rest: Iterator[tuple[Mapping[str, Any], Path, int]] = iter(wanted)
        self._file: BinaryIO | None = None
        self._left = 0
        self._next()

    def take(self, data: bytes) -> None:
        """The next bytes. StorageError if there are more than all files need."""
        while data:
            while self._file is not None and self._left == 0:
                self._next()
            if self._file is None:
                raise StorageError("received more bytes than the files of the checkpoint have")
            self._file.write(data[: self._left])
            data, self._left = data[self._left :], max(0, self._left - len(data))

    def close(self) -> None:
        """Keep what has arrived; files of no bytes are made."""
        while self._file is not None and self._left == 0:
            self._next()
        if self._file is not None:
            self._file.close()

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        entry = next(self._rest, None)
        if entry is not None:
            file, path, offset = entry
            self._file = path.open("ab" if offset else "wb")
            self._left = file["size"] - offset


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_retained_data(workspace: Workspace) -> list[RetainedData]:
    """What a destroy would leave, as far as it can be asked; directories that hold nothing are not named."""
    state = with_unrecorded_runs(workspace)
    found = [
        remain
        for address, job in sorted(state.resources.items())
        if address.kind is Kind.JOB
        for record in runs_of(job)
        for remain in _retained_checkpoints(workspace, JobRun(job, record))
    ]
    return [*found, *_retained_mirror(workspace.mirror)]


def _retained_mirror(mirror: Mirror) -> list[RetainedData]:
    try:
        size = mirror.store.stored_bytes()
    except (NodeError, StorageError):
        return []
    place = str(directory_of(mirror) or mirror.url)
    return [RetainedData("mirror", place, size)] if size else []


def _retained_checkpoints(workspace: Workspace, run: JobRun) -> list[RetainedData]:
    try:
        rows = checkpoints_of(workspace, run).rows()
    except (NodeError, StorageError):
        return []
    size = sum(row["bytes"] for row in rows)
    return [RetainedData("checkpoints", _checkpoint_location(workspace, run), size)] if size else []


def _checkpoint_location(workspace: Workspace, run: JobRun) -> str:
    store = run.record.store or {}
    if store.get("url"):
        return f"{store['url'].rstrip('/')}/{store['prefix']}"
    node_id = run.record.ranks[0].node
    cluster = workspace.ledger.state().resources.get(
        Address(Kind.CLUSTER, node_id.partition("/")[0])
    )
    node = node_named(cluster, node_id) if cluster else None
    return (
        str(checkpoint_directory(node, run.job.address, run.project, run.record))
        if node
        else node_id
    )
