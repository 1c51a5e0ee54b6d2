"""``trainctl checkpoints``."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from trainctl.cli import options
from trainctl.cli.options import (
    NO_FLAGS,
    OutputFormat,
    TableFormat,
    argument,
    duration,
    option,
    print_result,
)
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_with_trust, report_unreachable
from trainctl.errors import UsageError
from trainctl.inputs.serving import ServingEngine
from trainctl.ledger.state import State
from trainctl.model.reports import Checkpoint
from trainctl.model.specs.location import CheckpointRanking
from trainctl.operations.runs import lookup
from trainctl.operations.runs.checkpoints import (
    artifacts,
    checkpoints_of,
    download_checkpoint,
    list_checkpoints,
)
from trainctl.operations.runs.deploy import prepare_serving, write_serving
from trainctl.operations.runs.lookup import JobRun
from trainctl.operations.runs.results import find_best, rank_checkpoints
from trainctl.operations.workspace import Workspace
from trainctl.views.runs.checkpoints import (
    CHECKPOINT_COLUMNS,
    artifacts_json,
    checkpoint_table,
    checkpoints_json,
    serving_lines,
    skipped_links_text,
)
from trainctl.views.terminal.text import warning_text


class CheckpointSort(StrEnum):
    """Sort keys of checkpoints."""

    CHECKPOINT_ID = "checkpoint-id"
    SIZE = "size"
    CREATED = "created"
    TYPE = "type"


Force = Annotated[bool, option("--force", "Use the named checkpoint even if it is unfinished")]

_SORT_KEYS: dict[CheckpointSort, Callable[[Checkpoint], Any]] = {
    CheckpointSort.CHECKPOINT_ID: lambda checkpoint: checkpoint.name,
    CheckpointSort.SIZE: lambda checkpoint: checkpoint.bytes,
    CheckpointSort.CREATED: lambda checkpoint: checkpoint.created_at,
    CheckpointSort.TYPE: lambda checkpoint: checkpoint.type or "",
}


By = Annotated[
    str | None,
    option(
        "--by KEY[:max]", "The best by this result, or JOB.KEY of evaluations [default: lowest]"
    ),
]
Kept = Annotated[bool, option("--kept", "Checkpoints of destroyed jobs")]


def list_command(
    session: CliSession,
    address: Annotated[
        str | None, argument("ADDRESS", "Job, e.g. job.train [default with --kept: all]")
    ] = None,
    run: options.RunOption = None,
    kept: Kept = False,
    name: Annotated[
        str | None, option("--checkpoint-name NAME", "Only the checkpoint of this name")
    ] = None,
    sort: Annotated[
        CheckpointSort | None,
        option(
            "--sort KEY", "Sort by checkpoint-id, size, created or type [default: run and step]"
        ),
    ] = None,
    by: By = None,
    order: options.Order = options.SortOrder.ASC,
    flags: options.TrustFlags = NO_FLAGS,
    format_: options.TableFormatOption = TableFormat.TEXT,
) -> int:
    """List the checkpoints of a job, or of all jobs of a matrix."""
    job = lookup.job_address(address) if address else None
    if job is None and (run or not kept):
        raise UsageError("no job named", "Name one, or use --kept.")
    with open_with_trust(session, flags) as workspace:
        state = lookup.kept_state(workspace) if kept else lookup.with_unrecorded_runs(workspace)
        every = kept and run is None
        runs = lookup.kept_runs(state, job) if every else lookup.select_runs(state, job, run)
        ranking = CheckpointRanking.read(by) if by else None
        checkpoints, unreachable = list_checkpoints(workspace, runs)
        checkpoints = [one for one in checkpoints if name in (None, one.name)]
        if ranking is not None and checkpoints:
            checkpoints = rank_checkpoints(workspace, runs, checkpoints, ranking)
    if sort is not None:
        checkpoints.sort(key=_SORT_KEYS[sort])
    if order is options.SortOrder.DESC:
        checkpoints.reverse()
    form = checkpoints_json(checkpoints, unreachable)
    has_jobs = kept or len({job_run.job.address for job_run in runs}) > 1
    width, metric = session.output.width, ranking.metric if ranking else ""
    lines = checkpoint_table(checkpoints, width, jobs=has_jobs, metric=metric)
    print_result(session.output, format_, form, lines, (CHECKPOINT_COLUMNS, form["checkpoints"]))
    return report_unreachable(session, unreachable, "the checkpoints")


def download_command(
    session: CliSession,
    address: options.JobArgument,
    name: Annotated[
        str | None, option("--name CHECKPOINT", "Checkpoint name [default: latest complete]")
    ] = None,
    by: By = None,
    target: options.OutputDirectory = Path(),
    rank: Annotated[int, option("--rank N", "Rank that saved the checkpoint")] = 0,
    force: Force = False,
    run: options.RunOption = None,
    kept: Kept = False,
    flags: options.TrustFlags = NO_FLAGS,
) -> int:
    """Download a checkpoint; by default, the latest complete checkpoint."""
    with open_with_trust(session, flags) as workspace:
        state = lookup.kept_state(workspace) if kept else lookup.with_unrecorded_runs(workspace)
        job_run, name = _choose(session, workspace, state, address, run, name, by)
        place, skipped_links, warning = download_checkpoint(
            workspace, job_run, target, name=name, rank=rank, force=force
        )
    session.output.print(str(place))
    if warning:
        session.output.note(f"Warning: {warning}")
    if skipped_links:
        session.output.note(
            f"{skipped_links_text(skipped_links)}: the target is missing or outside the checkpoint directory"
        )
    return 0


def _choose(
    session: CliSession,
    workspace: Workspace,
    state: State,
    address: str,
    run: str | None,
    name: str | None,
    by: str | None,
) -> tuple[JobRun, str | None]:
    """Return the run and the name of the checkpoint that is meant: ``--by`` a result, ``best`` by ``keep_best``."""
    job = lookup.job_address(address)
    ranking = CheckpointRanking.read(by) if by else None
    if name == "best" and ranking is None:
        ranking = workspace.desired.checkpoints.keep_best
    if ranking is None:
        if name == "best" and lookup.jobs_of_matrix(state.resources, job):
            summary = "the metric of the best checkpoint is missing"
            raise UsageError(summary, "Use --by KEY, or set keep_best of checkpoints.")
        return lookup.find_run(state, job, run), name
    if name not in (None, "best"):
        raise UsageError(f"--by can't be used with {name}", "Remove one of them.")
    best = find_best(workspace, lookup.select_runs(state, job, run), ranking)
    session.output.note(best.text)
    return best.run, best.name


_LONGEST_DAYS = 7


def url_command(
    session: CliSession,
    address: options.JobArgument,
    name: Annotated[
        str | None, option("--name CHECKPOINT", "Checkpoint name [default: all complete]")
    ] = None,
    expires: Annotated[str, option("--expires DURATION", "Validity of presigned URLs")] = "7d",
    run: options.RunOption = None,
    flags: options.TrustFlags = NO_FLAGS,
    format_: options.FormatOption = OutputFormat.TEXT,
) -> int:
    """Print presigned URLs of the files of complete checkpoints, or their paths on nodes."""
    seconds = int(duration("--expires", expires))
    if not 1 <= seconds <= _LONGEST_DAYS * 86_400:
        raise UsageError(
            f"--expires {expires}: must be between 1s and 7d", "Use for example 12h or 7d."
        )
    with open_with_trust(session, flags) as workspace:
        job_run = lookup.named_run(workspace, address, run)
        files = artifacts(workspace, job_run, name, seconds)
    if format_ is OutputFormat.JSON:
        job = str(job_run.job.address).removeprefix("job.")
        session.output.json(artifacts_json(job, time.time(), files), links=True)
    else:
        for artifact in files:
            session.output.print(artifact.url, links=True)
    return 0


def upload_command(
    session: CliSession,
    address: options.JobArgument,
    run: options.RunOption = None,
    flags: options.TrustFlags = NO_FLAGS,
) -> int:
    """Upload checkpoints that a finished or lost run left on its node."""
    with open_with_trust(session, flags) as workspace:
        job_run = lookup.named_run(workspace, address, run)
        sync = checkpoints_of(workspace, job_run).upload()
    if not sync:
        session.output.print("The run saves no checkpoints.")
    elif sync.get("error"):
        session.output.print(f"Some checkpoints were not uploaded: {sync['error']}")
    else:
        session.output.print("All checkpoints are uploaded.")
    return 0


def deploy_command(
    session: CliSession,
    address: options.JobArgument,
    checkpoint: Annotated[
        str | None, option("--checkpoint NAME", "Checkpoint name [default: latest complete]")
    ] = None,
    out: Annotated[
        Path | None, option("--out DIR", "Directory to write [default: serve-JOB]")
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Print the files and write nothing")] = False,
    by: By = None,
    base_model: Annotated[
        str | None, option("--base-model SOURCE", "Base model [default: the checkpoint's]")
    ] = None,
    cluster: Annotated[
        str | None, option("--cluster CLUSTER", "Cluster to serve on [default: the job's]")
    ] = None,
    engine: Annotated[
        ServingEngine, option("--engine ENGINE", "vllm, or transformers, which needs no GPU")
    ] = ServingEngine.VLLM,
    force: Force = False,
    run: options.RunOption = None,
    flags: options.TrustFlags = NO_FLAGS,
) -> int:
    """Write a directory with the weights of a checkpoint, and a manifest of a job that serves it."""
    output = session.output
    with open_with_trust(session, flags) as workspace:
        state = lookup.with_unrecorded_runs(workspace)
        job_run, checkpoint = _choose(session, workspace, state, address, run, checkpoint, by)
        rows = checkpoints_of(workspace, job_run).rows(brief=False, of=0)
        serving = prepare_serving(
            workspace, job_run, rows, checkpoint, base_model, cluster, engine, force=force
        )
        directory = out or Path(f"serve-{serving.name}")
        warning = None if dry_run else write_serving(workspace, job_run, serving, directory)
    if warning:
        output.note(f"Warning: {warning}")
    for line in serving.warnings:
        output.note(warning_text(line, code="stale-weights"))
    output.print("\n".join(serving_lines(serving, directory, dry_run=dry_run)))
    return 0
