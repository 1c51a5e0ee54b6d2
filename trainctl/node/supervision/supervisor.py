"""Supervisor: one detached process per rank of a run. See runs/DESIGN.md."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from trainctl.base.clock import Stopwatch
from trainctl.base.filesystem.files import remove_tree, write_atomic
from trainctl.base.filesystem.space import from_os_error
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.protocol.runs import RunSpec
from trainctl.base.system.processes import is_alive
from trainctl.base.system.syscalls import (
    PR_SET_CHILD_SUBREAPER,
    prctl,
    release_free_memory,
)
from trainctl.errors import TrainctlError
from trainctl.node.checkpoints.loader import load_checkpoints
from trainctl.node.checkpoints.uploader_process import UploaderProcess
from trainctl.node.environment import container
from trainctl.node.environment.workspace import (
    activation_lines,
    describe_failure,
    is_inherited,
    job_environment,
    keep_variables,
    prepare_job,
    restoring_lines,
    shell_arguments,
    shell_program,
    started_commands,
)
from trainctl.node.metrics.progress import ProgressEndpoint
from trainctl.node.metrics.sampler import Sampler
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import (
    ANOTHER_SUPERVISOR,
    AWAITED_SIGNALS,
    Attempt,
    AttemptEnd,
    Launch,
)
from trainctl.node.runs.logs import LogTruncator
from trainctl.node.runs.points import update_results
from trainctl.node.runs.record import (
    NodeRun,
    declared_variables,
    evaluated_run,
    max_duration_seconds,
    start_commands,
    with_commands,
)
from trainctl.node.scheduling.allocation import NO_GPUS, Allocation
from trainctl.node.scheduling.rank_coordination import RankCoordination, RunOutcome
from trainctl.node.supervision.attempt_limits import DiskGuard, HeldPlace
from trainctl.node.supervision.evaluations import EvaluationLoop
from trainctl.node.system.host import kill_marked, leave_session, run_detached
from trainctl.node.training_caches import prepare_cache, update_summary

_WRITE_ATTEMPTS = 60  # a minute: other runs may free the disk meanwhile
_REPORT_SECONDS = 2.0  # callers take silence for a broken connection
_EXIT_SECONDS = 10.0  # the kernel frees the memory of a killed process first
_EXIT_POLL_SECONDS = 0.01
_REPEAT_SECONDS = 0.5
_RELEASED = b"."


class LaunchRequest(NamedTuple):
    """Arguments of a supervisor, in memory only."""

    run: NodeRun
    spec: RunSpec
    secrets: Mapping[str, str]
    data: Path
    rendezvous: Optional[Mapping[str, Any]] = None
    """Port and token of rank 0 of its gang, for all other ranks."""
    prepare: Callable[[], None] = lambda: None
    """Called before anything else; its TrainctlError ends the run."""


def spawn(request: LaunchRequest, emit: Callable[[Dict[str, Any]], None]) -> None:
    """Start a detached supervisor; returns once the job runs, waits or has ended.

    Emits ``{waiting}`` every few seconds meanwhile.
    """
    reader, writer = os.pipe()

    def supervise() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED_SIGNALS)
        leave_session(request.run.key)
        supervisor = _Supervisor(request, writer)
        if evaluated_run(request.spec):
            _repeat_if_killed(supervisor.run)
        else:
            supervisor.run()

    run_detached(supervise, request.run.directory / "supervisor.log", writer)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while not select.select([stream], [], [], _REPORT_SECONDS)[0]:
            emit({"waiting": request.run.record.get("waiting")})
        if stream.read(1):
            return
    # A killed supervisor closes its files before it has exited.
    until = time.monotonic() + _EXIT_SECONDS
    while is_alive(request.run.supervisor) and time.monotonic() < until:
        time.sleep(_EXIT_POLL_SECONDS)


def _repeat_if_killed(supervise: Callable[[], None]) -> None:
    """Supervise in a child process, and in another one whenever it is killed: the request is only in memory."""
    while os.fork():
        _, status = os.wait()
        if not os.WIFSIGNALED(status):
            return
        time.sleep(_REPEAT_SECONDS)  # the warden kills what was about to start
    supervise()


def run_in_foreground(request: LaunchRequest) -> None:
    """Supervise in this process, for a batch system that started it and signals it."""
    os.chdir("/")
    os.umask(0o077)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _Supervisor(request).run()


class _Supervisor:
    """Single-threaded: claims the run, executes it, records the outcome."""

    def __init__(self, request: LaunchRequest, ready: Optional[int] = None) -> None:
        """``ready``: descriptor that releases the caller."""
        self._request = request
        self._run = request.run
        self._rank = int(request.spec["rank"])
        self._ready = ready
        self._record: Dict[str, Any] = {}
        self._clock = Stopwatch()
        self._log = LogTruncator(request.run.log(self._rank))
        self._peers = RankCoordination(request.run, request.spec, self._report_pending)
        if request.spec.get("gang"):
            from trainctl.node.rendezvous.member import GangMember

            self._peers = GangMember(
                request.run,
                request.spec,
                self._report_pending,
                partial(self._report_pending, queue=None, status=runs.DEPLOYING),
                request.rendezvous,
            )
        self._allocation: Allocation = self._peers.allocation()
        self._uploads = UploaderProcess(request.run, request.spec, request.secrets, request.data)
        self._progress = ProgressEndpoint(request.run)
        self._sampler = Sampler(request.run, request.spec)
        self._place = HeldPlace(request.run, request.spec, self._update_record)
        self._disks = DiskGuard(request.run, request.spec)

    def run(self) -> None:
        """Claim and execute the run and record its outcome, unless it can't be claimed."""
        if not self._run.claim():
            self._release_caller()
            return
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            if started_at := self._run.record.get("started_at"):  # of the first evaluation
                self._record = {"started_at": started_at}
            if self._request.spec["job"].get("persisted_secrets"):
                self._run.store_secrets(self._request.secrets)
            self._peers.join()
            self._request.prepare()
            outcome = self._run_attempts()
        except TrainctlError as error:
            text = f"{error.summary}. {error.detail}".strip()
            outcome = RunOutcome(runs.DEPLOY_FAILED, error=text, cause=error.code)
        except OSError as error:
            failure = from_os_error(error, str(self._run.layout.root))
            outcome = RunOutcome(runs.DEPLOY_FAILED, error=f"{failure.summary}. {failure.detail}")
        if outcome is not None:
            outcome = self._peers.report_exit(outcome)
            if outcome.status == runs.STOPPED and not outcome.error:
                outcome = outcome._replace(error=self._run.interruption)
        self._allocation.release()
        if outcome is not None and not self._is_superseded:
            at = self._clock.now
            hurried = outcome.status == runs.DEPLOY_FAILED or self._grace() <= 0
            record = {"status": outcome.status, "exit_code": outcome.exit_code, "ended_at": at}
            self._run.release_space(runs.RECORD_BYTES)  # uploads may take an hour
            self._uploads.finish(record, at, hurried=hurried)
            self._end(outcome, at)
        self._release_caller()
        self._peers.close()

    def _run_attempts(self) -> Optional[RunOutcome]:
        """Attempt until success, end of retries or a stop; None if superseded."""
        run = self._run
        self._update_record(status=runs.DEPLOYING)
        if not self._allocation.wait_for_dependencies():
            return RunOutcome(runs.STOPPED)
        outcome = prepare_cache(
            run, self._request.spec, self._prepare, self._report_pending, self._report_deploying
        )
        if outcome is not None:
            return outcome
        if evaluated_run(self._request.spec):
            return self._evaluate_checkpoints()
        if not self._allocation.acquire():
            return RunOutcome(runs.STOPPED)
        self._report_deploying()
        if self._allocation.gpu_ids:  # inspection reports which run has claimed them
            self._update_record(gpus=self._allocation.gpu_ids)
        request = self._request
        loaded = load_checkpoints(run, request.spec, request.secrets, request.data)
        self._update_record(loaded=loaded)
        self._uploads.start_and_announce()
        return self._attempts([self._sampler, self._uploads.restart_if_dead])

    def _evaluate_checkpoints(self) -> Optional[RunOutcome]:
        request = self._request
        self._uploads.start_and_announce()

        def attempt(chore: Callable[[], None]) -> Optional[RunOutcome]:
            self._report_deploying()
            return self._attempts([self._sampler, self._uploads.restart_if_dead, chore])

        loop = EvaluationLoop(self._run, request.spec, request.secrets, request.data)
        return loop.run(self._allocation, attempt, self._report_pending)

    def _attempts(self, chores: List[Callable[[], None]]) -> Optional[RunOutcome]:
        number = 0
        while self._peers.wait_for_layout():
            number += 1
            end = self._attempt(number, chores)
            if end is None or isinstance(end, RunOutcome):
                return end
            end = self._place.result(end)
            own = self._outcome(end, start_commands(self._request.spec))
            outcome = self._peers.decide_outcome(own, end, number, self._update_record)
            if outcome is not None:
                return outcome
        return RunOutcome(runs.STOPPED)

    def _report_deploying(self, step: Optional[str] = None) -> None:
        """Report that the run waits for nothing, and the current step if given."""
        if self._record["status"] != runs.DEPLOYING or self._record.get("waiting") != step:
            self._update_record(status=runs.DEPLOYING, waiting=step, queue=None)

    def _prepare(self, commands: List[str]) -> Optional[RunOutcome]:
        """Run commands that fill the training cache like the job, but without GPUs.

        None on success, else the run's outcome.
        """
        launch = self._launch(with_commands(self._request.spec, commands), 1, runs.PREPARE)
        attempt = Attempt(self._run, self._rank, launch, self._grace, stage=runs.PREPARE)
        log = LogTruncator(self._run.log(self._rank, runs.PREPARE))
        end = self._execute(attempt, launch, log, None, lambda: None, [])
        outcome = (
            self._outcome(end, commands, "prepare command") if isinstance(end, AttemptEnd) else end
        )
        if outcome is None or outcome.status == runs.COMPLETED:
            return None
        if outcome.status == runs.STOPPED:
            return RunOutcome(runs.STOPPED)
        return outcome._replace(status=runs.DEPLOY_FAILED)

    def _attempt(
        self, number: int, chores: List[Callable[[], None]]
    ) -> Union[AttemptEnd, RunOutcome, None]:
        """Prepare the job again and run it once; a RunOutcome if it could not start."""
        launch = self._launch(self._request.spec, number)
        attempt = Attempt(self._run, self._rank, launch, self._grace, self._allocation.descriptors)

        def on_start() -> None:
            self._progress.serve()
            if number == 1:
                self._clock = Stopwatch()
                at = self._record.get("started_at", self._clock.wall)
                self._update_record(status=runs.RUNNING, started_at=at)
                # If this fails, secrets are discarded again at the run's end.
                with contextlib.suppress(OSError):
                    if not evaluated_run(self._request.spec):
                        self._run.discard_secrets()
                self._release_caller()

        if not self._peers.wait_to_start():
            launch.finish()
            return RunOutcome(runs.STOPPED)
        all_chores = [*chores, *self._peers.chores(attempt)]
        all_chores.append(lambda: self._place.tend(attempt, self._clock))
        all_chores.append(lambda: self._disks.tend(attempt))
        return self._execute(attempt, launch, self._log, self._deadline, on_start, all_chores)

    def _execute(
        self,
        attempt: Attempt,
        launch: Launch,
        log: LogTruncator,
        deadline: Optional[float],
        on_start: Callable[[], None],
        chores: Sequence[Callable[[], None]],
    ) -> Union[AttemptEnd, RunOutcome, None]:
        """Start the attempt and wait for its end; None if another supervisor has the run."""
        try:
            if self._is_superseded or signal.SIGTERM in signal.sigpending():
                return RunOutcome(runs.STOPPED)
            error = attempt.start()
            if error == ANOTHER_SUPERVISOR:
                return None
            if error:
                return RunOutcome(runs.DEPLOY_FAILED, error=error)
            on_start()
            end = attempt.watch(self._clock, deadline, [log, *chores])
            log.finish()
            error = "" if end.stopped else launch.refused()
            return RunOutcome(runs.DEPLOY_FAILED, error=error) if error else end
        finally:
            launch.finish()

    def _launch(self, spec: RunSpec, number: int, stage: str = "") -> Launch:
        prepared = prepare_job(self._run, spec, self._request.data)
        self._sampler.settle()
        variables = {} if stage else self._progress.variables()
        variables.update(job_environment(self._run, spec, self._request.secrets))
        variables.update(NO_GPUS if stage else self._allocation.variables)
        variables.update(prepared.variables)
        variables.update({} if stage else self._peers.variables)
        variables["BT_RETRY_COUNT"] = str(int(variables.get("BT_RETRY_COUNT", 0)) + number - 1)
        gpus = self._allocation.gpu_ids
        self._update_record(mount=prepared.mount, weights_mode=prepared.weights_mode, gpus=gpus)
        for path in (self._run.step, self._run.held):
            write_atomic(path, b"\n", durable=False)
        trigger = "" if stage else self._place.trigger(number)
        if spec.get("container"):
            log = self._run.log(self._rank, stage)
            return container.launch(self._run, spec, prepared, variables, log, gpus, trigger)
        script = self._run.directory / "commands.sh"
        declared = declared_variables(spec)
        own = [name for name in variables if name in declared or not is_inherited(name)]
        before = restoring_lines(own) + activation_lines(spec["venv"])
        text = shell_program(start_commands(spec), self._run.work, self._run.step, before)
        write_atomic(script, text.encode(), durable=False)
        argv = shell_arguments(script, self._run.held, trigger)
        return Launch(argv, keep_variables(variables, own), prepared.mounts)

    def _outcome(
        self, end: AttemptEnd, commands: Sequence[str], noun: str = "start command"
    ) -> RunOutcome:
        if end.code is None:
            return RunOutcome(runs.FAILED, end.warden, "the job's warden process was killed")
        if end.stopped and self._disks.reason:
            return RunOutcome(runs.FAILED, end.code, self._disks.reason)
        if end.stopped:
            return RunOutcome(runs.STOPPED, end.code, self._run.interruption)
        if end.expired:
            error = f"the run exceeded its max_duration of {self._deadline:.0f} s"
            return RunOutcome(runs.FAILED, end.code, error)
        if self._request.spec.get("batch") and signal.SIGTERM in signal.sigpending():
            return RunOutcome(runs.STOPPED, end.code)  # the batch system signals the job as well
        code, started = end.code, started_commands(self._run.step)
        if code == 0 and started == len(commands):
            return RunOutcome(runs.COMPLETED, 0)
        error = describe_failure(commands, self._run.step, code, noun)
        status = runs.FAILED if started or code < 0 else runs.DEPLOY_FAILED
        return RunOutcome(status, code, error)

    @property
    def _deadline(self) -> Optional[float]:
        return max_duration_seconds(self._request.spec)

    def _grace(self) -> float:
        return self._run.grace_seconds(self._request.spec)

    def _end(self, outcome: RunOutcome, at: float) -> None:
        """Record the outcome. Scratch is removed first: the record may need the space."""
        if "started_at" in self._record:
            self._sampler.finish()
            kill_marked(self._run.mark)  # shells of users that entered the run
        ending = {**outcome._asdict(), "ended_at": at, "session": None}
        if not outcome.root_cause:
            del ending["root_cause"]
        if self._is_interrupted(outcome):
            waiting = "was interrupted, and may start again"
            ending.update(status=runs.PENDING, waiting=waiting, ended_at=None)
        with contextlib.suppress(OSError):
            ending["results"] = update_results(self._run, is_over=True) or None
        for _ in range(_WRITE_ATTEMPTS):
            with contextlib.suppress(OSError):
                remove_tree(self._run.scratch)
                remove_tree(self._run.view)
                remove_tree(self._run.loaded)
                self._run.discard_secrets()
                self._record.update(ending)
                self._write_record()
                break
            time.sleep(1)
        self._release_caller()
        for directory in self._request.spec.get("caches", ()):
            update_summary(self._run.layout, Path(directory))

    def _is_interrupted(self, outcome: RunOutcome) -> bool:
        """Whether the batch system stopped the run: neither trainctl nor another rank's failure did."""
        if not self._request.spec.get("batch") or self._run.stop_request:
            return False
        cause = outcome.root_cause
        return outcome.status == runs.STOPPED and (not cause or cause["status"] == runs.STOPPED)

    def _report_pending(
        self, waiting: str, queue: Optional[str], status: str = runs.PENDING
    ) -> None:
        """Report what the run waits for, and release the caller."""
        if self._record.get("waiting") != waiting:
            self._update_record(status=status, waiting=waiting, queue=queue)
            self._release_caller()
            release_free_memory()

    @property
    def _is_superseded(self) -> bool:
        return self._run.is_superseded(int(self._request.spec["generation"]))

    def _update_record(self, **changes: Any) -> None:
        self._record.update(changes)
        with contextlib.suppress(OSError):  # the last record contains these changes
            self._write_record()

    def _write_record(self) -> None:
        if not self._is_superseded:
            self._run.write(self._record)

    def _release_caller(self) -> None:
        if self._ready is not None:
            with contextlib.suppress(OSError):  # the caller may have exited
                os.write(self._ready, _RELEASED)
            os.close(self._ready)
            self._ready = None
