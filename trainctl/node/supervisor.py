"""The supervisor: one detached process a run, from the claim to the end. See DESIGN.md, "Runs"."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from trainctl.node import runs
from trainctl.node.ending import end_descendants
from trainctl.node.failure import Failure, from_os_error
from trainctl.node.files import make_directory, read_json, remove_tree, write_atomic
from trainctl.node.job import Prepared, environment, prepare
from trainctl.node.mount import enter
from trainctl.node.processes import identity
from trainctl.node.runs import Run
from trainctl.node.shell import arguments, program, what_failed
from trainctl.node.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from trainctl.node.warden import close_all_but, exit_code, guard

_AWAITED = {signal.SIGTERM, signal.SIGCHLD}
_WRITE_ATTEMPTS = 600
_GRACE_SECONDS = 30.0


class Order(NamedTuple):
    """What a supervisor is started with; lives in memory only."""

    run: Run
    spec: Mapping[str, Any]
    secrets: Mapping[str, str]
    data: Path


class Ending(NamedTuple):
    """How a run ended."""

    status: str
    exit_code: Optional[int] = None
    error: Optional[str] = None


def spawn(order: Order) -> None:
    """Start a supervisor that outlives this process; returns when the job runs, has ended, or is another's."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _detach(order.run, writer)
                _Supervisor(order, writer).run()
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as stream:
        stream.read()


def grace_seconds(run: Run, spec: Mapping[str, Any]) -> float:
    """How long the job may take to end: what whoever stops it said, else the specification."""
    asked = read_json(run.directory / "stop.json") or {}
    return float(asked.get("grace_seconds", spec.get("grace_seconds", _GRACE_SECONDS)))


def _detach(run: Run, kept: int) -> None:
    """Let go of the terminal and of every file of the caller; what Python says goes beside the run."""
    nothing = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    errors = os.open(run.directory / "supervisor.log", flags, 0o600)
    for number, source in enumerate((nothing, nothing, errors)):
        os.dup2(source, number)
    close_all_but(kept)
    os.chdir("/")
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)


class _Supervisor:
    """From claim to end, in one thread."""

    def __init__(self, order: Order, ready: int) -> None:
        self._order = order
        self._run = order.run
        self._ready: Optional[int] = ready
        self._record: Dict[str, Any] = {}
        self._begin()

    def _begin(self) -> None:
        """From here on time is counted by a clock that nobody sets."""
        self._wall = time.time()
        self._began = time.monotonic()

    def run(self) -> None:
        """Claim the run, do it, say how it ended. Returns at once if the run is another's."""
        if not self._run.claim():
            return
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            ending = self._do()
        except Failure as error:
            ending = Ending(runs.DEPLOY_FAILED, error=f"{error.summary}. {error.detail}".strip())
        except OSError as error:
            failure = from_os_error(error, str(self._run.layout.root))
            ending = Ending(runs.DEPLOY_FAILED, error=f"{failure.summary}. {failure.detail}")
        if ending is not None:
            self._end(ending)

    def _do(self) -> Optional[Ending]:
        self._say(status=runs.DEPLOYING)
        prepared = prepare(self._run, self._order.spec, self._order.data)
        variables = environment(self._run, self._order.spec, self._order.secrets)
        script = self._run.directory / "commands.sh"
        text = program(self._order.spec["commands"], self._run.work, self._run.step)
        write_atomic(script, text.encode())
        self._say(mount=prepared.mount, weights_mode=prepared.weights_mode)
        if signal.SIGTERM in signal.sigpending():
            return Ending(runs.STOPPED)
        shell = _Shell(self._order, prepared, variables, arguments(script))
        warden, results = shell.start()
        problem = results.refused()
        if problem == _TAKEN:
            return None
        if problem:
            os.waitpid(warden, 0)
            return Ending(runs.DEPLOY_FAILED, error=problem)
        self._begin()
        self._say(status=runs.RUNNING, started_at=self._wall)
        self._release_caller()
        return self._watch(warden, results)

    def _watch(self, warden: int, results: _Results) -> Ending:
        stopped = False
        while True:
            pid, status = os.waitpid(warden, os.WNOHANG)
            if pid == warden:
                break
            if signal.sigwait(_AWAITED) == signal.SIGTERM and not stopped:
                stopped = True
                os.kill(warden, signal.SIGTERM)
        code = results.exit_code()
        end_descendants(0.0)  # nobody is left, unless the warden itself was killed
        if code is None:
            return Ending(runs.FAILED, exit_code(status), "the job's guardian process was killed")
        if stopped:
            return Ending(runs.STOPPED, code)
        if code == 0:
            return Ending(runs.COMPLETED, 0)
        how = f"exited with {code}" if code > 0 else f"was killed by signal {-code}"
        error = what_failed(self._order.spec["commands"], self._run.step, how)
        return Ending(runs.FAILED, code, error)

    def _end(self, ending: Ending) -> None:
        """Scratch first, which may free the space that the record needs."""
        self._say_patiently(
            status=ending.status,
            exit_code=ending.exit_code,
            error=ending.error,
            ended_at=self._wall + (time.monotonic() - self._began),
        )
        self._release_caller()

    def _say_patiently(self, **changes: Any) -> None:
        for _ in range(_WRITE_ATTEMPTS):
            with contextlib.suppress(OSError):
                remove_tree(self._run.scratch)
                remove_tree(self._run.view)
                self._say(**changes)
                return
            time.sleep(1)

    def _say(self, **changes: Any) -> None:
        self._record.update(changes)
        self._run.write(self._record)

    def _release_caller(self) -> None:
        if self._ready is not None:
            os.close(self._ready)
            self._ready = None


_TAKEN = "taken"


class _Results:
    """What the job's process and the warden tell the supervisor, each through a pipe that ends with them."""

    def __init__(self, refusal: int, code: int) -> None:
        self._refusal = refusal
        self._code = code

    def refused(self) -> str:
        """Why the shell could not be executed; empty once it was."""
        with os.fdopen(self._refusal, "rb") as stream:
            return stream.read().decode(errors="replace")

    def exit_code(self) -> Optional[int]:
        """The shell's exit code, after the warden has ended; None if it could not say."""
        with os.fdopen(self._code, "rb") as stream:
            text = stream.read()
        return int(json.loads(text)) if text else None


class _Shell:
    """The job's shell and its warden."""

    def __init__(
        self,
        order: Order,
        prepared: Prepared,
        variables: Mapping[str, str],
        argv: Tuple[str, ...],
    ) -> None:
        self._order = order
        self._prepared = prepared
        self._variables = variables
        self._argv = argv
        self._supervisor = identity()

    def start(self) -> Tuple[int, _Results]:
        """Fork the warden, which forks the shell."""
        refusal_reader, self._refusal = os.pipe()
        code_reader, code_writer = os.pipe()
        warden = os.fork()
        if warden == 0:
            try:
                code = guard(self._execute, code_writer, self._grace, self._supervisor["pid"])
                os.write(code_writer, json.dumps(code).encode())
            finally:
                os._exit(0)
        os.close(self._refusal)
        os.close(code_writer)
        return warden, _Results(refusal_reader, code_reader)

    def _grace(self) -> float:
        return grace_seconds(self._order.run, self._order.spec)

    def _execute(self) -> None:
        """In the job's own process: log, mounts, the mark that it starts, then the shell in our place."""
        run = self._order.run
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            self._redirect()
            if self._prepared.mounts:
                enter(self._prepared.mounts, run.view, run.layout.cache)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.chdir(run.work)
            os.umask(0o022)
            if not run.mark_started(self._supervisor):
                self._refuse(_TAKEN)
                return
            os.execve(self._argv[0], list(self._argv), dict(self._variables))  # noqa: S606 - it is the shell
        except OSError as error:
            self._refuse(f"the job could not be started: {error.strerror} ({error.filename})")

    def _redirect(self) -> None:
        path = self._order.run.log(int(self._order.spec["rank"]))
        make_directory(path.parent)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)

    def _refuse(self, why: str) -> None:
        os.write(self._refusal, why.encode()[:4000])
