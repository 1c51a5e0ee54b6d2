"""Fill a training cache by commands. See DESIGN.md, "Training caches"."""

from __future__ import annotations

import hashlib
import json
from typing import Callable, List, Mapping, Optional

from trainctl.base.filesystem.files import make_directory, write_json
from trainctl.base.protocol.runs import RunSpec
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import wait_for_stop
from trainctl.node.runs.job import prepare_commands
from trainctl.node.runs.record import PREPARE, NodeRun
from trainctl.node.scheduling.allocation import PendingFn
from trainctl.node.scheduling.rank_coordination import RunOutcome
from trainctl.node.training.cache import TrainingCache, content_lock

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
    lock = content_lock(run.layout, cache.directory)
    while not cache.is_prepared(digest) and not lock.try_acquire():
        pending("waits for another run to prepare the training cache", None)
        if wait_for_stop(_POLL_SECONDS):
            return RunOutcome(runs.STOPPED)
    try:
        if cache.is_prepared(digest):
            _record_preparer(run, rank, cache.prepared_by(digest))
            return None
        begin("prepares the training cache")
        outcome = execute(commands)
        if outcome is not None:
            return _with_last_lines(outcome, run, rank)
        name = f"run {spec['number']} ({spec['id']}) of {spec['address']}"
        cache.mark_prepared(digest, run.key, name)
    finally:
        lock.release()
    return None


def _record_preparer(run: NodeRun, rank: int, preparer: Mapping[str, str]) -> None:
    """Record which other run has the commands' log, in place of that log."""
    if preparer.get("run") != run.key:
        path = run.prepared_by(rank)
        make_directory(path.parent)
        write_json(path, {"name": preparer.get("name") or "another run"})


def _with_last_lines(outcome: RunOutcome, run: NodeRun, rank: int) -> RunOutcome:
    """Append the last lines that the commands printed to the error."""
    text = run.tail(rank, PREPARE) if outcome.exit_code else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    output = " / ".join(repr(line[:_LINE])[1:-1] for line in lines)
    return outcome._replace(error=f"{outcome.error}. Output: {output}") if output else outcome
