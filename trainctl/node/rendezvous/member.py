"""A rank's member of its gang, used by its supervisor. See DESIGN.md, "Gangs"."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import read_json, write_json
from trainctl.base.network.listener import listen, parse_port_range
from trainctl.base.protocol.runs import GangSpec, RunSpec
from trainctl.base.system.processes import boot_id
from trainctl.base.units import parse_duration
from trainctl.node.rendezvous.channel import DisconnectTimeouts, HelperPipe, HelperProcess
from trainctl.node.rendezvous.coordinator import Coordinator, PortReservation
from trainctl.node.rendezvous.coordinator_connection import CoordinatorConnection
from trainctl.node.rendezvous.coordinator_state import CoordinatorState, GangPolicy
from trainctl.node.rendezvous.gang_allocation import GangAllocation
from trainctl.node.rendezvous.worker_failures import judge_failure
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import Attempt, AttemptEnd
from trainctl.node.runs.job import declared_variables
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import Allocation, PendingFn
from trainctl.node.scheduling.rank_coordination import AttemptPolicy, RankCoordination, RunOutcome

_POLL_SECONDS = 0.25
_DECISION_SECONDS = 3600.0
_FAREWELL_SECONDS = 15.0


class GangMember(RankCoordination):
    """A rank of a gang."""

    def __init__(
        self,
        run: NodeRun,
        spec: RunSpec,
        pending: PendingFn,
        deploying: Callable[[str], None],
        rendezvous: Optional[Mapping[str, Any]],
    ) -> None:
        """``deploying`` is called with the reason while ranks are missing."""
        super().__init__(run, spec, pending)
        self._deploying = deploying
        self._rendezvous = rendezvous
        self._rank = int(spec["rank"])
        self._gang = spec["gang"] or GangSpec()
        self._timeouts = DisconnectTimeouts(self._gang)
        self._helper: Optional[HelperProcess] = None
        self._layout: Dict[str, Any] = {}
        self._over: Optional[Dict[str, Any]] = None
        self._end: Optional[Dict[str, Any]] = None
        self._is_stop_reported = False
        self._began = False

    def join(self) -> None:
        """Start the helper: rank 0 listens, the others connect."""
        self._helper = self._start_coordinator() if self._rank == 0 else self._start_connection()

    def _start_coordinator(self) -> HelperProcess:
        addresses = self._gang["addresses"]
        ports = parse_port_range(self._gang.get("ports"))
        token, port_reservation = secrets.token_hex(32), PortReservation(ports)
        retry = AttemptPolicy.of(self._spec)
        listeners, runtime = listen(addresses, ports), self._spec["job"]["runtime"]
        policy = GangPolicy(
            int(self._spec["group_size"]),
            addresses,
            retry.max_attempts,
            retry.delay_seconds,
            slot=bool(self._run.order.get("slots", self._spec.get("slots"))),
            end=runtime["gang_end"],
            end_grace=parse_duration(runtime["gang_end_grace"]),
        )
        date = self._run.queued_ns
        state = CoordinatorState(policy, port_reservation.allocate, port_reservation.release, date)
        generation = int(self._spec["generation"])
        coordinator = Coordinator(listeners, token, generation, state, self._timeouts)
        helper = HelperProcess(
            lambda line: coordinator.work(line, boot_id()),
            [listener.fileno() for listener in listeners],
        )
        # The other ranks are started with port and token.
        own = {"port": listeners[0].getsockname()[1], "token": token}
        write_json(self._run.gang, {**(self._rendezvous or {}), **own})
        for listener in listeners:
            listener.close()
        return helper

    def _start_connection(self) -> HelperProcess:
        if self._rendezvous is None:
            raise Failure("request", "the rendezvous of rank 0 is required to start another rank")
        hello = {"host": boot_id(), "generation": int(self._spec["generation"])}
        addresses = self._gang["addresses"]
        port, token = int(self._rendezvous["port"]), str(self._rendezvous["token"])
        connection = CoordinatorConnection(
            self._rank, hello, addresses, port, token, self._timeouts
        )
        return HelperProcess(connection.work)

    def allocation(self) -> Allocation:
        """All ranks wait together."""
        return GangAllocation(self._run, self._spec, self._pending, self)

    @property
    def line(self) -> HelperPipe:
        """Pipe to the helper; Failure before ``join``."""
        if self._helper is None:
            raise Failure("failed", "the gang was not joined")
        return self._helper.line

    @property
    def descriptor(self) -> int:
        """Readable when there is a decision."""
        return self.line.fileno()

    def send_value(self, value: Dict[str, Any]) -> None:
        """Send a message to the coordinator."""
        self.line.send_value(value)

    def receive(self, seconds: float = 0.0) -> List[Dict[str, Any]]:
        """Wait for decisions, and process those that apply to every stage."""
        values = self.line.receive(seconds)
        for value in values:
            self._process(value)
        if not self.line.open and self._over is None:
            cause = {"rank": self._rank, "status": runs.LOST, "exit_code": None}
            self._over = {"cause": {**cause, "error": "its helper was killed"}, "alone": "lost"}
        return values

    def _process(self, value: Dict[str, Any]) -> None:
        action = value.get("do")
        if action == "over":
            self._over = value
        elif action == "end":
            self._end = value
            if value.get("grace") is not None:
                path = self._run.directory / "stop.json"
                with contextlib.suppress(OSError):  # the disk may be full
                    write_json(path, {**(read_json(path) or {}), "grace_seconds": value["grace"]})
        elif action == "lay out":
            self._layout, self._end = value, None
        elif action == "wait":
            reason = str(value.get("why"))
            if reason.startswith("waits for rank") and ":" not in reason:
                self._deploying(reason)
            else:
                self._pending(reason, None)

    @property
    def is_over(self) -> bool:
        """Whether the gang's outcome is decided."""
        return self._over is not None

    def wait_for(self, *actions: str) -> Optional[Dict[str, Any]]:
        """Wait for one of these decisions; None if the gang is over or stopping."""
        while not self.is_over and signal.SIGTERM not in signal.sigpending():
            for value in self.receive(_POLL_SECONDS):
                if value.get("do") in actions:
                    return value
        return None

    def wait_for_layout(self) -> bool:
        """The first layout arrives with the allocation."""
        return not self.is_over and (bool(self._layout) or self.wait_for("lay out") is not None)

    @property
    def variables(self) -> Dict[str, str]:
        """Address of rank 0 and port reserved for the job."""
        leader = str(self._layout["leader"])
        variables = {
            "BT_LEADER_ADDR": leader,
            "MASTER_ADDR": leader,
            "MASTER_PORT": str(self._layout["port"]),
        }
        declared = declared_variables(self._spec)
        return {
            name: value
            for name, value in variables.items()
            if name not in declared or name[:2] == "BT"
        }

    def wait_to_start(self) -> bool:
        """All ranks start together."""
        self._layout = {}
        checkpoints = self._run.record.get("loaded") or ()
        loaded = sorted([checkpoint["run"], checkpoint["name"]] for checkpoint in checkpoints)
        self.send_value({"is": "prepared", "loaded": loaded})
        self._began = self.wait_for("go") is not None
        return self._began

    def chores(self, attempt: Attempt) -> List[Callable[[], None]]:
        """Stops this rank with the gang, and reports stop requests."""

        def tend() -> None:
            self.receive()
            if self._end is not None or self._over is not None:
                attempt.end()
            elif attempt.stopped:
                self._report_stop()

        return [tend]

    def decide_outcome(
        self, own: RunOutcome, end: AttemptEnd, number: int, on_retry: Callable[[str], None]
    ) -> Optional[RunOutcome]:
        """The coordinator decides when all ranks have ended."""
        consequence = False
        if own.status == runs.FAILED and not end.expired:
            consequence, line = judge_failure(self._run.tail(self._rank), end.code)
            own = own._replace(error=f"{own.error}: {line}" if line else own.error)
        self.send_value(
            {
                "is": "ended",
                "status": own.status,
                "code": end.code,
                "error": own.error,
                "expired": end.expired,
                "consequence": consequence,
                "grace": self._grace,
            }
        )
        value = self._wait_for_decision("again")
        if value is None:
            return self._final(own)
        on_retry(cause_text(value["cause"]))
        return None

    def report_exit(self, own: RunOutcome) -> RunOutcome:
        """Waits for the others unless the gang is over."""
        if own.root_cause is not None or self._helper is None:
            return own
        self.receive()
        if self._over is None:
            if own.status == runs.STOPPED:
                self._report_stop()
            else:
                self.send_value({"is": "failed", "error": own.error})
            self._wait_for_decision()
        return self._final(own)

    def close(self) -> None:
        """Let the helper send its last messages, then end it."""
        if self._helper is not None:
            self._helper.finish(_FAREWELL_SECONDS)
            with contextlib.suppress(FileNotFoundError):
                self._run.gang.unlink()

    @property
    def _grace(self) -> Optional[float]:
        stop_request = read_json(self._run.directory / "stop.json") or {}
        return stop_request.get("grace_seconds")

    def _report_stop(self) -> None:
        if not self._is_stop_reported:
            self._is_stop_reported = True
            error = self._run.interruption
            self.send_value({"is": "stop", "grace": self._grace, "error": error})

    def _wait_for_decision(self, *actions: str) -> Optional[Dict[str, Any]]:
        """Wait for a decision after the attempt's end; None once the gang is over."""
        deadline = time.monotonic() + _DECISION_SECONDS
        while not self.is_over and time.monotonic() < deadline:
            for value in self.receive(_POLL_SECONDS):
                if value.get("do") in actions:
                    return value
            if signal.SIGTERM in signal.sigpending():
                self._report_stop()
        return None

    def _final(self, own: RunOutcome) -> RunOutcome:
        """Outcome of this rank in view of the gang's."""
        over = self._over or {}
        cause = over.get("cause")
        if over.get("alone") and own.status in (runs.COMPLETED, runs.FAILED):
            return own  # its commands had ended before rank 0 was lost
        if not cause or (over.get("alone") and self._is_stop_reported):
            return own  # the other ranks didn't receive the stop request
        status = str(cause.get("status") or runs.LOST)
        if status == runs.COMPLETED:  # this rank was stopped because that is enough
            return RunOutcome(runs.COMPLETED, own.exit_code) if own.status == runs.STOPPED else own
        cause = {**cause, "status": status}
        if cause["rank"] == self._rank and not over.get("alone"):
            return own._replace(root_cause=cause)
        if status == runs.STOPPED:
            return RunOutcome(runs.STOPPED, own.exit_code, root_cause=cause)
        if own.status in (runs.COMPLETED, runs.FAILED):
            return own._replace(root_cause=cause)
        if not self._began:
            return RunOutcome(
                runs.DEPLOY_FAILED, own.exit_code, cause_text(cause), root_cause=cause
            )
        reason = "was lost" if status == runs.LOST else "failed"
        error = f"stopped because rank {cause['rank']} {reason}"
        return RunOutcome(runs.STOPPED, own.exit_code, error, root_cause=cause)


def cause_text(cause: Mapping[str, Any]) -> str:
    """Describe the root cause: ``rank 2 failed: command 1 exited with 3``."""
    error, rank = str(cause.get("error") or "ended"), f"rank {cause.get('rank')}"
    if error.startswith("rank "):
        return error
    if cause.get("status") == runs.LOST:
        return f"{rank} {error}"
    verb = "failed" if cause.get("status") == runs.FAILED else "could not start"
    return f"{rank} {verb}: {error}"
