"""Commands that fill a training cache: once for each cache and text of the commands, under a lock. See DESIGN.md, "Training caches"."""

from __future__ import annotations

import hashlib
import json
import signal
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

from trainctl.base.clock import Stopwatch
from trainctl.base.files import make_directory, write_json
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.runs.attempt import Attempt, Launch, stopped_within
from trainctl.node.runs.log_times import LogKeeper
from trainctl.node.runs.record import PREPARE, Run
from trainctl.node.system.shell import what_failed
from trainctl.node.training.cache import TrainingCache, content_lock
from trainctl.node.turns.turn import Pending

_POLL_SECONDS = 0.5
_LAST_LINES = 3
_TAIL_BYTES = 4096
_LINE = 200


class NotPrepared(NamedTuple):
    """Why a run can't begin: its commands failed, or somebody wanted its end meanwhile."""

    error: Optional[str] = None
    exit_code: Optional[int] = None

    @property
    def stopped(self) -> bool:
        """Whether nothing went wrong."""
        return self.error is None


def prepare_cache(
    run: Run,
    spec: RunSpec,
    launch: Callable[[Sequence[str]], Launch],
    grace: Callable[[], float],
    pending: Pending,
    begin: Callable[[str], None],
) -> Optional[NotPrepared]:
    """Have the run's ``prepare`` commands run unless they prepared its cache before; None once the cache is ready.

    ``launch`` makes them something to execute as the job itself will be; ``begin`` is told what is done now.
    """
    wanted = spec.get("prepare")
    if not wanted:
        return None
    commands = [str(command) for command in wanted["commands"]]
    cache, digest = TrainingCache(run.layout, wanted["directory"]), _digest(commands)
    lock = content_lock(run.layout, cache.directory)
    while not cache.prepared(digest) and not lock.try_acquire():
        pending("waits for another run to prepare the training cache", None)
        if stopped_within(_POLL_SECONDS):
            return NotPrepared()
    try:
        if not cache.prepared(digest):
            begin("prepares the training cache")
            problem = _execute(run, int(spec["rank"]), commands, launch, grace)
            if problem is not None:
                return problem
            cache.mark_prepared(digest, run.key, _name(spec))
        else:
            _note_who(run, int(spec["rank"]), cache.prepared_by(digest))
    finally:
        lock.release()
    return None


def _name(spec: RunSpec) -> str:
    return f"run {spec['number']} ({spec['id']}) of {spec['address']}"


def _note_who(run: Run, rank: int, who: Mapping[str, Any]) -> None:
    """Where the commands' log would be, say who has it. A run that is tried again has its own."""
    if who.get("run") != run.key:
        place = run.prepared_by(rank)
        make_directory(place.parent)
        write_json(place, {"name": who.get("name") or "another run"})


def _digest(commands: List[str]) -> str:
    return hashlib.sha256(json.dumps(commands).encode()).hexdigest()


def _execute(
    run: Run,
    rank: int,
    commands: Sequence[str],
    launch: Callable[[Sequence[str]], Launch],
    grace: Callable[[], float],
) -> Optional[NotPrepared]:
    made = launch(commands)
    log = run.log(rank, PREPARE)
    attempt = Attempt(run, rank, made, grace, stage=PREPARE)
    try:
        if signal.SIGTERM in signal.sigpending():
            return NotPrepared()
        problem = attempt.start()
        if problem:
            return NotPrepared(problem)
        ended = attempt.watch(Stopwatch(), None, [LogKeeper(log)])
        problem = "" if ended.stopped else made.refused()
    finally:
        made.finish()
    if problem:
        return NotPrepared(problem)
    if ended.stopped:
        return NotPrepared()
    if ended.code == 0:
        return None
    if ended.code is None:
        return NotPrepared("the guardian process of the prepare commands was killed")
    how = f"exited with {ended.code}" if ended.code > 0 else f"was killed by signal {-ended.code}"
    return NotPrepared(
        what_failed(commands, run.step, how, "prepare command") + _last_lines(log), ended.code
    )


def _last_lines(log: Any) -> str:
    """The last lines that the commands printed, in one."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    shown = " / ".join(repr(line[:_LINE])[1:-1] for line in lines)
    return f". It said: {shown}" if shown else ""
