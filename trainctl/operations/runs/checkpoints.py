"""Checkpoints and code of runs: list, presign, upload, download; retained data."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from trainctl.base.checkpoints.manifests import is_checkpoint_name
from trainctl.base.json import digest
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.parallel import each
from trainctl.errors import (
    NodeError,
    NodeUnreachable,
    StorageError,
    TrainctlError,
    UnknownOnNode,
    UsageError,
)
from trainctl.inputs.environment import checkpoint_directory, file_name
from trainctl.model.address import Address, Kind
from trainctl.model.reports import (
    Checkpoint,
    CheckpointFile,
    RetainedData,
    UnreachableNode,
    unreachable_nodes,
)
from trainctl.operations.runs.lookup import JobRun, run_control, with_unrecorded_runs
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import node_named
from trainctl.resources.checkpoints import CheckpointClient
from trainctl.resources.runs.run_control import runs_of

if TYPE_CHECKING:
    from trainctl.base.protocol.training import CheckpointObjectRange

_CHECKPOINT_FIELDS = (
    "name", "rank", "step", "bytes", "files", "created_at", "state", "url", "type", "base_model", "lora_rank",
    "skipped_links", "unfinished", "tensors", "parameters", "dtypes",
)  # fmt: skip

_AT_ONCE = 8
"""How many runs are queried at the same time."""


def checkpoints_of(workspace: Workspace, run: JobRun) -> CheckpointClient:
    """Return the client of a run's checkpoints."""
    return CheckpointClient(run_control(workspace, run.state), workspace.checkpoints, run.record)


def known_checkpoints(
    workspace: Workspace, run: JobRun
) -> tuple[list[Checkpoint], tuple[UnreachableNode, ...]]:
    """Return a run's known checkpoints, and the unreachable nodes."""
    rows, unreachable = checkpoints_of(workspace, run).survey()
    checkpoints = [checkpoint_from(row, run) for row in rows]
    checkpoints.sort(key=lambda item: (item.rank, item.created_at, item.step or 0, item.name))
    return checkpoints, unreachable


def list_checkpoints(
    workspace: Workspace, runs: Sequence[JobRun]
) -> tuple[list[Checkpoint], tuple[UnreachableNode, ...]]:
    """Return the known checkpoints of several runs, queried in parallel."""

    def query(
        run: JobRun,
    ) -> tuple[list[Checkpoint], tuple[UnreachableNode, ...], NodeUnreachable | None]:
        try:
            return *known_checkpoints(workspace, run), None
        except NodeUnreachable as error:
            errors_by_rank = {rank.rank: error for rank in run.record.ranks}
            return [], unreachable_nodes(run.record, errors_by_rank), error

    results = each(query, runs, _AT_ONCE)
    if results and all(error is not None for _, _, error in results):
        raise next(error for _, _, error in results if error is not None)
    unreachable = dict.fromkeys(node for _, nodes, _ in results for node in nodes)
    checkpoints = [checkpoint for known, _, _ in results for checkpoint in known]
    return checkpoints, tuple(unreachable)


def select_checkpoint(
    rows: list[dict[str, Any]], run: JobRun, name: str | None, rank: int, *, force: bool = False
) -> dict[str, Any]:
    """Select a rank's newest complete checkpoint, or the one of that name; with ``force`` also an unfinished one."""
    from trainctl.base.checkpoints.layout import recency_key

    states = ("complete", "unfinished") if force and name else ("complete",)
    usable = [row for row in rows if row["rank"] == rank and row["state"] in states]
    candidates = [row for row in usable if name in (None, row["name"])]
    if not candidates:
        labels = set()
        for row in rows:
            reason = (
                f": {row['unfinished']}; download --force uses it" if row.get("unfinished") else ""
            )
            note = "" if row["state"] == "complete" else f" ({row['state']}{reason})"
            labels.add(f"{row['name']}{note}")
        known = ", ".join(sorted(labels)) or "none"
        missing = f"complete checkpoint {name}" if name else "complete checkpoint"
        raise UsageError(
            f"run {run.record.id} of {run.job.address} has no {missing} of rank {rank}",
            f"Available: {known}.",
            code="checkpoint-not-found",
        )
    return max(candidates, key=recency_key)


def artifacts(
    workspace: Workspace, run: JobRun, name: str | None, expires_seconds: int
) -> list[CheckpointFile]:
    """List the files of complete checkpoints, with URLs."""
    from trainctl.base.checkpoints.layout import folder_of

    client = checkpoints_of(workspace, run)
    rows = client.rows(brief=False)
    complete = [row for row in rows if row["state"] == "complete" and name in (None, row["name"])]
    if not complete:
        select_checkpoint(rows, run, name, 0)  # raises with the available names
    files = [(row, file) for row in complete for file in row["files"]]
    urls = client.urls((file["key"] for _, file in files), expires_seconds)
    return [
        CheckpointFile(
            url,
            f"{folder_of(row)}/{file['path']}".lstrip("/"),
            row["rank"],
            bytes=file["size"],
            modified=file["modified"] / 1e9,
        )
        for (row, file), url in zip(files, urls, strict=True)
    ]


def checkpoint_from(row: Mapping[str, Any], run: JobRun) -> Checkpoint:
    """Convert a row; NodeError for a name that leads elsewhere."""
    name = str(row["name"])
    if not is_checkpoint_name(name):
        raise NodeError(
            f"invalid checkpoint name {name!r} from {row.get('node') or 'the store'}",
            "The name is not a path below a directory. Check the store.",
        )
    fields = {key: row[key] for key in _CHECKPOINT_FIELDS if key in row}
    if fields.get("type") in ("full", "whisper") and not fields.get("base_model"):
        # the only model that the job mounts
        sources = [item.source for item in run.job.job_spec.weights]
        models = [source for source in sources if "://datasets/" not in source]
        fields["base_model"] = models[0].removeprefix("hf://") if len(models) == 1 else None
    origin = {"job": str(run.job.address), "run": run.record.id}
    return Checkpoint(**{**origin, "step": None, **fields})


class DownloadedCheckpoint(NamedTuple):
    """A downloaded directory, the number of links to skipped files, and a warning if it is inside code."""

    place: Path
    skipped_links: int
    warning: str | None


def download_checkpoint(
    workspace: Workspace,
    run: JobRun,
    target: Path,
    *,
    name: str | None = None,
    rank: int = 0,
    force: bool = False,
) -> DownloadedCheckpoint:
    """Copy a checkpoint into ``target/<name>``, completely or not at all.

    The newest complete one by default; with ``force`` also an unfinished one of that name. Resumes an interrupted
    download. Needs only the node of the rank. UsageError if there is no such checkpoint or the target exists;
    StorageError if a file is corrupt.
    """
    client = checkpoints_of(workspace, run)
    chosen = select_checkpoint(client.rows(brief=False, of=rank), run, name, rank, force=force)
    checkpoint_from(chosen, run)  # validates the name
    place = target / (f"checkpoint-{run.record.id}" if chosen["name"] == "." else chosen["name"])
    require_absent(place)
    copy_checkpoint(client, chosen, place)
    warning = exclude_from_code(workspace, place)
    return DownloadedCheckpoint(place, int(chosen.get("skipped_links") or 0), warning)


def exclude_from_code(workspace: Workspace, place: Path) -> str | None:
    """Mark a downloaded directory if it is in the code of a job; return a warning."""
    from trainctl.inputs.code import DOWNLOAD_MARK
    from trainctl.plan.values import OUTPUT_MARK

    with suppress(TrainctlError):  # the manifest may be invalid
        for job in workspace.desired.jobs():
            code = (workspace.settings.directory / job.job_spec.code.path).resolve()
            if place.resolve().is_relative_to(code):
                (place / DOWNLOAD_MARK).write_text(f"{OUTPUT_MARK}\n")
                return f"{place} is in the code directory of {job.address.group}, and is left out of the code. To include it, delete {DOWNLOAD_MARK} there."
    return None


def copy_checkpoint(
    client: CheckpointClient, chosen: Mapping[str, Any], place: Path, *, link: bool = False
) -> None:
    """Copy the files of a row to a path that doesn't exist, completely or not at all.

    ``link``: link weights that are in a store on this machine, which replaces files and never changes them.
    """
    target = place.parent
    unfinished = target / f".download-{digest([chosen['url'], chosen['files']])[7:23]}"
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        if link and str(chosen["url"]).startswith("file:///"):
            urls = client.urls((file["key"] for file in chosen["files"]), 1)
            for file, url in zip(chosen["files"], urls, strict=True):
                stored = Path(unquote(url.removeprefix("file://")))
                # Large files that this machine has unchanged; the others are left to download.
                is_large = file["path"].endswith((".safetensors", ".bin"))
                with suppress(OSError):
                    if is_large and _sha256(stored) == file["sha256"]:
                        (unfinished / file["path"]).hardlink_to(stored)
        with client.leased(chosen["rank"], chosen["name"]):
            _fetch(client, chosen, unfinished)
        unfinished.rename(place)
    except OSError as error:
        raise StorageError(f"cannot copy {chosen['name']} to {target}: {error}") from error


def _fetch(client: CheckpointClient, chosen: Mapping[str, Any], directory: Path) -> None:
    """Download the missing and corrupt files into the directory."""
    missing = []
    for file in chosen["files"]:
        path = directory / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        present = path.stat().st_size if path.is_file() else 0
        if present == file["size"] and path.is_file() and _sha256(path) == file["sha256"]:
            continue
        missing.append((file, path, present if present < file["size"] else 0))
    if not missing:
        return
    objects: list[CheckpointObjectRange] = [
        {"key": file["key"], "offset": offset} for file, _, offset in missing
    ]
    with closing(file_writer(missing)) as writer:
        next(writer)
        client.read(chosen["rank"], objects, writer.send)
    for file, path, _ in missing:
        if path.stat().st_size != file["size"] or _sha256(path) != file["sha256"]:
            path.unlink()
            raise StorageError(
                f"{file['path']} of checkpoint {chosen['name']} is corrupt",
                "Files that are intact are kept. Try again; if the error persists, the store has been modified.",
            )


def file_writer(
    files: Iterable[tuple[Mapping[str, Any], Path, int]],
) -> Generator[None, bytes, None]:
    """Write the bytes that are sent, the content of consecutive files, each from its offset."""
    data = b""
    for file, path, offset in files:
        left = file["size"] - offset
        with path.open("ab" if offset else "wb") as stream:
            while left:
                data = data or (yield)
                written = stream.write(data[:left])
                data, left = data[written:], left - written
    while not data:
        data = yield
    raise StorageError("received more bytes than the files of the checkpoint have")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_retained_data(workspace: Workspace) -> list[RetainedData]:
    """List data that destroy keeps, as far as nodes are reachable."""
    from trainctl.weights.mirrors import is_remote

    state = with_unrecorded_runs(workspace)
    checkpoints = [
        retained
        for address, job in sorted(state.resources.items())
        if address.kind is Kind.JOB
        for record in runs_of(job)
        if record.reused_from is None
        for retained in _retained_checkpoints(workspace, JobRun(job, record))
    ]
    mirror = workspace.mirror
    with suppress(NodeError, StorageError):
        if size := mirror.store.stored_bytes():
            place = mirror.url if is_remote(mirror) else str(mirror.path)
            return [*checkpoints, RetainedData("mirror", place, size)]
    return checkpoints


def _retained_checkpoints(workspace: Workspace, run: JobRun) -> list[RetainedData]:
    try:
        rows = checkpoints_of(workspace, run).rows()
    except (NodeError, StorageError):
        return []
    size, store = sum(row["bytes"] for row in rows), run.record.store or {}
    if not size:
        return []
    if store.get("url"):
        place = f"{store['url'].rstrip('/')}/{store['prefix']}"
    else:
        place = run.record.ranks[0].node
        address = Address(Kind.CLUSTER, place.partition("/")[0])
        cluster = workspace.ledger.state().resources.get(address)
        node = node_named(cluster, place) if cluster else None
        place = str(checkpoint_directory(node, run.record)) if node else place
    return [RetainedData("checkpoints", place, size)]


def require_absent(place: Path, option: str = "--output-dir") -> None:
    """Raise UsageError if the path exists; ``option`` names another directory."""
    if place.exists() or place.is_symlink():
        raise UsageError(
            f"{place} already exists",
            f"Move it, or use another directory: {option} DIR.",
            code="target-exists",
        )


def _unpack(data: Iterator[bytes], place: Path, label: str, check: Callable[[], None]) -> None:
    """Unpack a tar into ``place``, which exists once it is complete."""
    import shutil  # slow to import
    import tempfile

    from trainctl.base.filesystem.archives import UnsafeArchive, unpack

    target = place.parent
    try:
        target.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".download-", dir=target))
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror}") from error
    try:
        unfinished.chmod(0o755)
        unpack(cast("IO[bytes]", _IteratorFile(data)), unfinished)
        for _ in data:
            continue  # padding after the tar's end
        check()
        unfinished.rename(place)
    except (OSError, UnsafeArchive) as error:
        raise StorageError(f"cannot copy {label} to {target}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _save(data: Iterator[bytes], place: Path, label: str, check: Callable[[], None]) -> None:
    """Write a file, which is there only once it is complete."""
    import tempfile  # slow to import

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".download-", dir=place.parent) as unfinished:
            for buffer in data:
                unfinished.write(buffer)
            unfinished.flush()
            check()
            os.link(unfinished.name, place)
    except OSError as error:
        raise StorageError(f"cannot copy {label} to {place.parent}: {error}") from error


class _IteratorFile(io.RawIOBase):
    """A readable file of an iterator of bytes."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes; fewer than ``size`` only at the end."""
        while size < 0 or len(self._rest) < size:
            buffer = next(self._data, None)
            if buffer is None:
                break
            self._rest += buffer
        end = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:end], self._rest[end:]
        return data


def download_code(
    workspace: Workspace, run: JobRun, target: Path, *, archive: bool = False
) -> Path:
    """Download the code to ``target/<project>_<job>_<run id>``, verified; as ``.tar`` if ``archive``."""
    from trainctl.operations.streams import iterate_callbacks

    record = run.record
    label = f"the code of run {record.number} ({record.id})"
    name = f"{run.project}_{file_name(run.job.address)}_{record.id}"
    place = target / (f"{name}.tar" if archive else name)
    require_absent(place)
    code = record.code
    if code is None or not record.ranks:
        raise TrainctlError(
            f"{label} is not available: the run never reached a node", code="run-not-found"
        )
    sha256 = hashlib.sha256()

    def read() -> Iterator[bytes]:
        control = run_control(workspace)
        for buffer in iterate_callbacks(partial(control.read_code, record, code)):
            sha256.update(buffer)
            yield buffer

    def check() -> None:
        if record.code_archive and sha256.hexdigest() != record.code_archive:
            raise NodeError(
                f"{label} differs from the code of the run",
                f"Received an archive with sha256 {sha256.hexdigest()} from {record.ranks[0].node}; expected {record.code_archive}.",
            )

    node = record.ranks[0].node
    try:
        if archive:
            _save(read(), place, label, check)
        else:
            _unpack(read(), place, label, check)
    except UnknownOnNode as error:
        raise UnknownOnNode(f"{label} not found on {node}", error.summary) from error
    return place
