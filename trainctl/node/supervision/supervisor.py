"""The supervisor: one detached process a run, from the claim to the end. See DESIGN.md, "Runs"."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from trainctl.base.clock import Stopwatch
from trainctl.base.failure import Failure, from_os_error
from trainctl.base.filesystem.files import remove_tree, write_atomic
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.system.processes import is_alive
from trainctl.base.system.syscalls import (
    PR_SET_CHILD_SUBREAPER,
    close_other_descriptors,
    prctl,
    release_free_memory,
)
from trainctl.node.checkpoints.loader import load_checkpoints
from trainctl.node.checkpoints.uploader_process import UploaderProcess
from trainctl.node.jobs import container
from trainctl.node.jobs.host_environment import activation_lines
from trainctl.node.jobs.workspace import job_environment, prepare_job
from trainctl.node.metrics.sampler import Sampler
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import (
    ANOTHER_SUPERVISOR,
    AWAITED_SIGNALS,
    Attempt,
    AttemptEnd,
    Launch,
)
from trainctl.node.runs.log_index import LogTruncator
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import Allocation
from trainctl.node.scheduling.gpus import NO_GPUS
from trainctl.node.scheduling.rank_coordination import RankCoordination, RunOutcome
from trainctl.node.system.host import leave_session
from trainctl.node.system.shell import describe_failure, shell_arguments, shell_program
from trainctl.node.training.cache import update_summary
from trainctl.node.training.preparation import prepare_cache

_WRITE_ATTEMPTS = 600
_REPORT_SECONDS = 2.0
_EXIT_SECONDS = 10.0
_EXIT_POLL_SECONDS = 0.01
_RELEASED = b"."


class LaunchRequest(NamedTuple):
    """What a supervisor is started with; lives in memory only."""

    run: NodeRun
    spec: RunSpec
    secrets: Mapping[str, str]
    data: Path
    rendezvous: Optional[Mapping[str, Any]] = None
    """How rank 0 of its gang is reached and what opens it, for every rank but that one."""


def spawn(order: LaunchRequest, tell: Callable[[], None]) -> None:
    """Start a supervisor that outlives this process; returns when the job runs, waits, has ended, or is another's.

    Meanwhile ``tell`` is called now and then.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _detach(order.run, writer)
                leave_session(order.run.key)
                _Supervisor(order, writer).run()
        except BaseException:  # noqa: BLE001 - this process has no caller
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while not select.select([stream], [], [], _REPORT_SECONDS)[0]:
            tell()
        if not stream.read(1):
            _wait_for_exit(order.run)


def _wait_for_exit(run: NodeRun) -> None:
    """Wait for a killed supervisor to be gone: it closes its files before, and the run would seem to go on."""
    until = time.monotonic() + _EXIT_SECONDS
    while is_alive(run.supervisor) and time.monotonic() < until:
        time.sleep(_EXIT_POLL_SECONDS)


def _detach(run: NodeRun, kept: int) -> None:
    """Let go of the terminal and of every file of the caller; what Python says goes beside the run."""
    nothing = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    errors = os.open(run.directory / "supervisor.log", flags, 0o600)
    for number, source in enumerate((nothing, nothing, errors)):
        os.dup2(source, number)
    close_other_descriptors(kept)
    os.chdir("/")
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED_SIGNALS)


class _Supervisor:
    """From claim to end, in one thread."""

    def __init__(self, order: LaunchRequest, ready: int) -> None:
        self._order = order
        self._run = order.run
        self._rank = int(order.spec["rank"])
        self._ready: Optional[int] = ready
        self._record: Dict[str, Any] = {}
        self._clock = Stopwatch()
        self._log = LogTruncator(order.run.log(self._rank))
        self._peers = self._peers_of(order)
        self._turn: Allocation = self._peers.turn()
        self._uploads = UploaderProcess(order.run, order.spec, order.secrets, order.data)
        self._sampler = Sampler(order.run, order.spec)

    def run(self) -> None:
        """Claim the run, do it, say how it ended. Returns at once if the run is another's."""
        if not self._run.claim():
            self._release_caller()
            return
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            if self._order.spec.get("persist_secrets"):
                self._run.keep_secrets(self._order.secrets)
            self._peers.join()
            ending = self._run_attempts()
        except Failure as error:
            why = f"{error.summary}. {error.detail}".strip()
            ending = RunOutcome(runs.DEPLOY_FAILED, error=why, cause=error.kind)
        except OSError as error:
            failure = from_os_error(error, str(self._run.layout.root))
            ending = RunOutcome(runs.DEPLOY_FAILED, error=f"{failure.summary}. {failure.detail}")
        if ending is not None:
            ending = self._peers.leave(ending)
        self._turn.release()
        if ending is not None and not self._is_fenced:
            at = self._clock.now
            hurried = ending.status == runs.DEPLOY_FAILED or self._grace() <= 0
            record = {"status": ending.status, "exit_code": ending.exit_code, "ended_at": at}
            self._uploads.drain(record, at, hurried=hurried)
            self._end(ending, at)
        self._release_caller()
        self._peers.close()

    def _peers_of(self, order: LaunchRequest) -> RankCoordination:
        if not order.spec.get("gang"):
            return RankCoordination(order.run, order.spec, self._report_pending)
        from trainctl.node.rendezvous.member import GangMember

        return GangMember(
            order.run, order.spec, self._report_pending, self._wait_for_ranks, order.rendezvous
        )

    def _run_attempts(self) -> Optional[RunOutcome]:
        """Attempts until one completes, the retry policy is exhausted, or a stop is requested; None if another supervisor has the run."""
        run = self._run
        self._update_record(status=runs.DEPLOYING)
        if not self._turn.follow():
            return RunOutcome(runs.STOPPED)
        refused = prepare_cache(
            run, self._order.spec, self._prepare, self._report_pending, self._deploy
        )
        if refused is not None:
            return refused
        if not self._turn.wait():
            return RunOutcome(runs.STOPPED)
        self._deploy()
        if self._turn.gpu_ids:  # inspection reports which run holds them
            self._update_record(gpus=self._turn.gpu_ids)
        self._update_record(
            loaded=load_checkpoints(run, self._order.spec, self._order.secrets, self._order.data)
        )
        self._uploads.begin()
        return self._attempts([self._sampler, self._uploads.restart_if_dead])

    def _attempts(self, chores: List[Callable[[], None]]) -> Optional[RunOutcome]:
        number = 0
        while self._peers.wait_for_layout():
            number += 1
            ended = self._attempt(number, chores)
            if ended is None or isinstance(ended, RunOutcome):
                return ended

            def note(error: str, retries: int = number) -> None:
                self._update_record(error=error, retries=retries)

            ending = self._peers.settle(
                self._ending(ended, self._order.spec["commands"]), ended, number, note
            )
            if ending is not None:
                return ending
        return RunOutcome(runs.STOPPED)

    def _deploy(self, at: Optional[str] = None) -> None:
        """Nothing is waited for any more: say so, and perhaps what is done now."""
        if self._record["status"] != runs.DEPLOYING or self._record.get("waiting") != at:
            self._update_record(status=runs.DEPLOYING, waiting=at, queue=None)

    def _prepare(self, commands: List[str]) -> Optional[RunOutcome]:
        """Run the commands that fill the training cache as the job is run, but without a GPU, none of which is claimed yet.

        None once they have succeeded, else how the run ends.
        """
        launch = self._launch({**self._order.spec, "commands": commands}, 1, runs.PREPARE)
        attempt = Attempt(self._run, self._rank, launch, self._grace, stage=runs.PREPARE)
        log = LogTruncator(self._run.log(self._rank, runs.PREPARE))
        ended = self._execute(attempt, launch, log, None, lambda: None, [])
        if isinstance(ended, AttemptEnd):
            ended = self._ending(ended, commands, "prepare command")
        if ended is None or ended.status == runs.COMPLETED:
            return None
        if ended.status == runs.STOPPED:
            return RunOutcome(runs.STOPPED)
        return ended._replace(status=runs.DEPLOY_FAILED)

    def _attempt(
        self, number: int, chores: List[Callable[[], None]]
    ) -> Union[AttemptEnd, RunOutcome, None]:
        """One attempt, with everything laid out again but what is kept; an Outcome if it could not begin."""
        launch = self._launch(self._order.spec, number)
        attempt = Attempt(self._run, self._rank, launch, self._grace, self._turn.descriptors)

        def began() -> None:
            if number == 1:
                self._clock = Stopwatch()
                self._update_record(status=runs.RUNNING, started_at=self._clock.wall)
                # The run begins at most once. What can't be removed now is at the end.
                with contextlib.suppress(OSError):
                    self._run.discard_secrets()
                self._release_caller()

        if not self._peers.begin():
            launch.finish()
            return RunOutcome(runs.STOPPED)
        tending = [*chores, *self._peers.chores(attempt)]
        return self._execute(attempt, launch, self._log, self._deadline, began, tending)

    def _execute(
        self,
        attempt: Attempt,
        launch: Launch,
        log: LogTruncator,
        deadline: Optional[float],
        began: Callable[[], None],
        chores: Sequence[Callable[[], None]],
    ) -> Union[AttemptEnd, RunOutcome, None]:
        """From the fork to the end; None if the run is another's."""
        try:
            if self._is_fenced or signal.SIGTERM in signal.sigpending():
                return RunOutcome(runs.STOPPED)
            problem = attempt.start()
            if problem:
                return (
                    None
                    if problem == ANOTHER_SUPERVISOR
                    else RunOutcome(runs.DEPLOY_FAILED, error=problem)
                )
            began()
            ended = attempt.watch(self._clock, deadline, [log, *chores])
            log.finish()
            problem = "" if ended.stopped else launch.refused()
            return RunOutcome(runs.DEPLOY_FAILED, error=problem) if problem else ended
        finally:
            launch.finish()

    def _launch(self, spec: RunSpec, number: int, stage: str = "") -> Launch:
        prepared = prepare_job(self._run, spec, self._order.data)
        variables = job_environment(self._run, spec, self._order.secrets)
        variables.update(NO_GPUS if stage else self._turn.variables)
        variables.update(prepared.variables)
        variables.update({} if stage else self._peers.variables)
        variables["BT_RETRY_COUNT"] = str(int(variables.get("BT_RETRY_COUNT", 0)) + number - 1)
        gpus = self._turn.gpu_ids
        self._update_record(mount=prepared.mount, weights_mode=prepared.weights_mode, gpus=gpus)
        write_atomic(self._run.step, b"", durable=False)
        if spec.get("container"):
            log = self._run.log(self._rank, stage)
            return container.launch(self._run, spec, prepared, variables, log, gpus)
        script = self._run.directory / "commands.sh"
        before = activation_lines((spec.get("host") or {}).get("venv"))
        text = shell_program(spec["commands"], self._run.work, self._run.step, before)
        write_atomic(script, text.encode(), durable=False)
        return Launch(shell_arguments(script), variables, prepared.mounts)

    def _ending(
        self, ended: AttemptEnd, commands: Sequence[str], noun: str = "start command"
    ) -> RunOutcome:
        if ended.code is None:
            return RunOutcome(runs.FAILED, ended.warden, "the job's guardian process was killed")
        if ended.stopped:
            return RunOutcome(runs.STOPPED, ended.code)
        if ended.expired:
            allowed = f"max_duration of {self._deadline:.0f} s"
            return RunOutcome(runs.FAILED, ended.code, f"the run was ended after its {allowed}")
        if ended.code == 0:
            return RunOutcome(runs.COMPLETED, 0)
        code = ended.code
        how = f"exited with {code}" if code > 0 else f"was killed by signal {-code}"
        error = describe_failure(commands, self._run.step, how, noun)
        return RunOutcome(runs.FAILED, code, error)

    @property
    def _deadline(self) -> Optional[float]:
        seconds = self._order.spec.get("max_duration_seconds")
        return None if seconds is None else float(seconds)

    def _grace(self) -> float:
        return self._run.grace_seconds(self._order.spec)

    def _end(self, ending: RunOutcome, at: float) -> None:
        """Scratch first, which may free the space that the record needs."""
        if "started_at" in self._record:
            self._sampler.finish()
        self._update_record_with_retries(
            status=ending.status,
            exit_code=ending.exit_code,
            error=ending.error,
            cause=ending.cause,
            ended_at=at,
            **({"root_cause": dict(ending.root_cause)} if ending.root_cause else {}),
        )
        self._release_caller()
        for directory in self._order.spec.get("caches", ()):
            update_summary(self._run.layout, Path(directory))

    def _report_pending(self, waiting: str, queue: Optional[str]) -> None:
        """Nobody has to stay for what comes: say once what is waited for."""
        if self._record.get("waiting") != waiting:
            self._update_record(status=runs.PENDING, waiting=waiting, queue=queue)
            self._release_caller()
            release_free_memory()

    def _wait_for_ranks(self, waiting: str) -> None:
        """Report that other ranks have not started, and release the caller; the run isn't in a queue yet."""
        if self._record.get("waiting") != waiting:
            self._update_record(status=runs.DEPLOYING, waiting=waiting, queue=None)
            self._release_caller()

    def _update_record_with_retries(self, **changes: Any) -> None:
        for _ in range(_WRITE_ATTEMPTS):
            with contextlib.suppress(OSError):
                remove_tree(self._run.scratch)
                remove_tree(self._run.view)
                remove_tree(self._run.loaded)
                self._run.discard_secrets()
                self._update_record(**changes)
                return
            time.sleep(1)

    @property
    def _is_fenced(self) -> bool:
        return self._run.is_fenced(int(self._order.spec["generation"]))

    def _update_record(self, **changes: Any) -> None:
        self._record.update(changes)
        if not self._is_fenced:
            self._run.write(self._record)

    def _release_caller(self) -> None:
        if self._ready is not None:
            with contextlib.suppress(OSError):  # it may have gone
                os.write(self._ready, _RELEASED)
            os.close(self._ready)
            self._ready = None
