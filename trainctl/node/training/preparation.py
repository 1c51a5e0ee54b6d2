"""Commands that fill a training cache: once for each cache and text of the commands, under a lock. See DESIGN.md, "Training caches"."""

from __future__ import annotations

import hashlib
import json
from typing import Callable, List, Mapping, Optional

from trainctl.base.filesystem.files import make_directory, write_json
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import wait_for_stop
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
    """Run the ``prepare`` commands unless they prepared the cache before; None once it is ready, else how the run ends.

    ``execute`` runs commands as the job itself is run; ``begin`` is called with what is done now.
    """
    wanted = spec.get("prepare")
    if not wanted:
        return None
    rank, commands = int(spec["rank"]), [str(command) for command in wanted["commands"]]
    digest = hashlib.sha256(json.dumps(commands).encode()).hexdigest()
    cache = TrainingCache(run.layout, wanted["directory"])
    lock = content_lock(run.layout, cache.directory)
    while not cache.prepared(digest) and not lock.try_acquire():
        pending("waits for another run to prepare the training cache", None)
        if wait_for_stop(_POLL_SECONDS):
            return RunOutcome(runs.STOPPED)
    try:
        if cache.prepared(digest):
            _name_preparer(run, rank, cache.prepared_by(digest))
            return None
        begin("prepares the training cache")
        ending = execute(commands)
        if ending is not None:
            return _with_last_lines(ending, run, rank)
        name = f"run {spec['number']} ({spec['id']}) of {spec['address']}"
        cache.mark_prepared(digest, run.key, name)
    finally:
        lock.release()
    return None


def _name_preparer(run: NodeRun, rank: int, preparer: Mapping[str, str]) -> None:
    """Write which other run has the commands' log, in place of that log."""
    if preparer.get("run") != run.key:
        place = run.prepared_by(rank)
        make_directory(place.parent)
        write_json(place, {"name": preparer.get("name") or "another run"})


def _with_last_lines(ending: RunOutcome, run: NodeRun, rank: int) -> RunOutcome:
    """With the last lines that the commands printed."""
    text = run.tail(rank, PREPARE) if ending.exit_code else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    shown = " / ".join(repr(line[:_LINE])[1:-1] for line in lines)
    return ending._replace(error=f"{ending.error}. It said: {shown}") if shown else ending
