"""A rank's member of its gang, used by its supervisor. See DESIGN.md."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from trainctl.base.filesystem.files import write_json
from trainctl.base.network.addresses import listen, parse_port_range
from trainctl.base.protocol.runs import GangSpec, RunSpec
from trainctl.base.system.processes import boot_id
from trainctl.base.units import parse_duration
from trainctl.errors import NodeError
from trainctl.node.rendezvous.coordinator import Coordinator, GangPolicy, GangTimeouts, Value
from trainctl.node.rendezvous.link import (
    HelperPipe,
    HelperProcess,
    PortReservation,
    RankLink,
    coordinate,
)
from trainctl.node.rendezvous.worker_failures import judge_failure
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import Attempt, AttemptEnd
from trainctl.node.runs.record import NodeRun, declared_variables
from trainctl.node.scheduling.allocation import (
    GPU_QUEUE,
    POLL_SECONDS,
    Allocation,
    GpuRequest,
    PendingFn,
    QueueEntry,
)
from trainctl.node.scheduling.claims import is_held, wait_for_release
from trainctl.node.scheduling.rank_coordination import AttemptPolicy, RankCoordination, RunOutcome

_POLL_SECONDS = 0.25  # an order ends the wait at once; only a stop request needs the poll
_DECISION_SECONDS = 3600.0  # longer than any grace period; other ranks may upload checkpoints
_FAREWELL_SECONDS = 15.0  # longer than rank 0 waits for the others


class GangMember(RankCoordination):
    """A rank of a gang: reports its state and follows the order of rank 0."""

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
        self._timeouts = GangTimeouts(self._gang)
        self._state: Value = {
            "rank": self._rank,
            "host": boot_id(),
            "generation": int(spec["generation"]),
            "instance": os.urandom(8).hex(),
            "is": "deploying",
        }
        self._helper: Optional[HelperProcess] = None
        self._line: HelperPipe  # once joined
        self._layout: Value = {}
        self._began = False
        self.order: Value = {"do": "join"}
        """The current order of rank 0."""

    def join(self) -> None:
        """Start the helper: rank 0 listens, the others connect."""
        self._helper = self._serve() if self._rank == 0 else self._connect()
        self._line = self._helper.line

    def _serve(self) -> HelperProcess:
        spec, addresses = self._spec, self._gang["addresses"]
        ports = parse_port_range(self._gang.get("ports"))
        token, port_reservation = os.urandom(32).hex(), PortReservation(ports)
        runtime = spec["job"]["runtime"]
        listeners = listen(addresses, ports)
        policy = GangPolicy(
            int(spec["group_size"]),
            addresses,
            *AttemptPolicy.of(spec),
            slot=bool(self._run.order.get("slots", spec.get("slots"))),
            end=runtime["gang_end"],
            end_grace=parse_duration(runtime["gang_end_grace"]),
        )
        ports_of_job = (port_reservation.allocate, port_reservation.release)
        coordinator = Coordinator(policy, *ports_of_job, self._run.queued_ns)

        def work(line: HelperPipe) -> None:
            from trainctl.node.rendezvous.exchange import GangServer  # not in supervisors: memory

            server = GangServer(
                listeners, token, self._state["generation"], coordinator, self._timeouts
            )
            coordinate(line, self._state, server, self._timeouts)

        helper = HelperProcess(work, [listener.fileno() for listener in listeners])
        # The other ranks are started with port and token.
        own = {"port": listeners[0].getsockname()[1], "token": token}
        write_json(self._run.gang, {**(self._rendezvous or {}), **own})
        for listener in listeners:
            listener.close()
        return helper

    def _connect(self) -> HelperProcess:
        if self._rendezvous is None:
            raise NodeError("the rendezvous of rank 0 is required to start another rank")
        addresses, port = self._gang["addresses"], int(self._rendezvous["port"])
        token = str(self._rendezvous["token"])

        def work(line: HelperPipe) -> None:
            from trainctl.node.rendezvous.exchange import GangClient

            client = GangClient(addresses, port, token, self._timeouts)
            tried = ", ".join(f"{address}:{port}" for address in addresses)
            RankLink(line, self._state, client.exchange, self._timeouts, tried).run()

        return HelperProcess(work)

    def allocation(self) -> Allocation:
        """All ranks wait together."""
        return GangAllocation(self._run, self._spec, self._pending, self)

    @property
    def descriptor(self) -> int:
        """Readable when there is another order."""
        return self._line.fileno()

    def report(self, word: str, **members: Any) -> None:
        """Make this the state of the rank."""
        kept = ("rank", "host", "generation", "instance", "stop")
        state = {name: self._state[name] for name in kept if name in self._state}
        state.update(members, **{"is": word})
        if state != self._state:
            self._state = state
            self._line.send(state)

    def refresh(self, seconds: float = 0.0) -> None:
        """Wait for another order, and process what applies to every stage."""
        order = self._line.receive(seconds)
        if order is not None:
            self.order = order
            if order["do"] == "end" and order["grace"] is not None:
                with contextlib.suppress(OSError):  # the disk may be full
                    request = {**self._run.stop_request, "grace_seconds": order["grace"]}
                    self._run.request_stop(**request)
            elif order.get("why") and self._state["is"] in ("here", "ready"):
                if order["do"] == "join":
                    self._deploying(order["why"])
                else:
                    self._pending(order["why"], None)
        if not self._line.open and not self.is_over:
            error = "its helper was killed"
            cause = {"rank": self._rank, "status": runs.LOST, "exit_code": None, "error": error}
            self.order = {"do": "over", "cause": cause, "alone": True}

    @property
    def is_over(self) -> bool:
        """Whether the gang's outcome is decided."""
        return bool(self.order["do"] == "over")

    def wait_for(self, *actions: str) -> bool:
        """Wait until the order is one of these; False if the gang is over or stopping."""
        while not self.is_over and signal.SIGTERM not in signal.sigpending():
            if self.order["do"] in actions:
                return True
            self.refresh(_POLL_SECONDS)
        return False

    def wait_for_layout(self) -> bool:
        """Wait for the order to prepare an attempt."""
        is_ordered = self.wait_for("prepare")
        self._layout = self.order
        return is_ordered

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
        checkpoints = self._run.record.get("loaded") or ()
        loaded = sorted([checkpoint["run"], checkpoint["name"]] for checkpoint in checkpoints)
        self.report("prepared", attempt=self._layout["attempt"], loaded=loaded)
        # if another rank has failed at once, the order to end follows
        self._began = self.wait_for("go", "end")
        return self._began

    def chores(self, attempt: Attempt) -> List[Callable[[], None]]:
        """Stops this rank with the gang, and reports stop requests."""

        def tend() -> None:
            self.refresh()
            if self.order["do"] in ("end", "over"):
                attempt.end()
            elif attempt.stopped:
                self._report_stop()

        return [tend]

    def decide_outcome(
        self, own: RunOutcome, end: AttemptEnd, number: int, record: Callable[..., None]
    ) -> Optional[RunOutcome]:
        """The coordinator decides when all ranks have ended."""
        consequence = False
        if own.status == runs.FAILED and not end.expired:
            consequence, line = judge_failure(self._run.tail(self._rank), end.code)
            own = own._replace(error=f"{own.error}: {line}" if line else own.error)
        self.report(
            "ended",
            attempt=self._layout["attempt"],
            status=own.status,
            code=end.code,
            error=own.error,
            expired=end.expired,
            consequence=consequence,
            grace=self._grace,
        )
        if not self._wait_for_decision("again", "prepare"):
            return self._final(own)
        record(error=cause_text(self.order["cause"]), retries=number)
        return None

    def report_exit(self, own: RunOutcome) -> RunOutcome:
        """Waits for the others unless the gang is over."""
        if own.root_cause is not None or self._helper is None:
            return own
        self.refresh()
        if not self.is_over:
            if own.status == runs.STOPPED:
                self._report_stop()
            self.report("failed", status=own.status, error=own.error)
            self._wait_for_decision()
        return self._final(own)

    def close(self) -> None:
        """Let the helper send the last state, then end it."""
        if self._helper is not None:
            self._helper.finish(_FAREWELL_SECONDS)
            with contextlib.suppress(FileNotFoundError):
                self._run.gang.unlink()

    @property
    def _grace(self) -> Optional[float]:
        return self._run.stop_request.get("grace_seconds")

    def _report_stop(self) -> None:
        if "stop" not in self._state:
            stop = {"grace": self._grace, "error": self._run.interruption}
            self._state = {**self._state, "stop": stop}
            self._line.send(self._state)

    def _wait_for_decision(self, *actions: str) -> bool:
        """Wait for one of these orders after the attempt's end; False once the gang is over."""
        deadline = time.monotonic() + _DECISION_SECONDS
        while not self.is_over and time.monotonic() < deadline:
            if self.order["do"] in actions:
                return True
            if signal.SIGTERM in signal.sigpending():
                self._report_stop()
            self.refresh(_POLL_SECONDS)
        return False

    def _final(self, own: RunOutcome) -> RunOutcome:
        """Outcome of this rank in view of the gang's."""
        cause = self.order.get("cause") if self.is_over else None
        alone = self.order.get("alone")
        if alone and own.status in (runs.COMPLETED, runs.FAILED):
            return own  # its commands had ended before rank 0 was lost
        if not cause or (alone and "stop" in self._state):
            return own  # the other ranks didn't receive the stop request
        status = str(cause.get("status") or runs.LOST)
        if status == runs.COMPLETED:  # this rank was stopped because that is enough
            return RunOutcome(runs.COMPLETED, own.exit_code) if own.status == runs.STOPPED else own
        cause = {**cause, "status": status}
        if cause["rank"] == self._rank and not alone:
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


class GangAllocation(Allocation):
    """One rank's allocation: claims GPUs when all ranks can."""

    def __init__(self, run: NodeRun, spec: RunSpec, pending: PendingFn, gang: GangMember) -> None:
        super().__init__(run, spec, pending)
        self._gang = gang

    def acquire(self) -> bool:
        """Wait until all ranks hold their GPUs; rank 0 acquires the sweep's slot before."""
        self._gang.report("here")
        if not self._gang.wait_for("slot", "queue", "claim"):
            return False
        if self._gang.order["do"] == "slot":
            if not self._acquire_slot():
                return False
            self._gang.report("slotted")
            if not self._gang.wait_for("queue", "claim"):
                return False
        gpu_request = self._gpu_request()
        if not gpu_request.count:
            return self._claim_together(gpu_request, None)
        entry = QueueEntry(self._run, self._spec, GPU_QUEUE, int(self._gang.order["date"]))
        try:
            return self._claim_together(gpu_request, entry)
        finally:
            entry.leave()

    def _is_stopping(self) -> bool:
        self._gang.refresh()
        return self._gang.is_over or super()._is_stopping()

    def _claim_together(self, gpu_request: GpuRequest, entry: Optional[QueueEntry]) -> bool:
        """Stay in the queue and claim on request; True once all ranks have claimed."""
        number, word = 0, ""
        while not self._is_stopping():
            claims: List[str] = []
            order = self._gang.order
            if order["do"] == "prepare":
                return word == "held"
            if order["round"] != number:  # some rank could not claim
                self._gpu_claims.release()
                self._gpus, number, word = [], order["round"], ""
            if word not in ("held", "refused"):
                ahead = entry.run_ahead() if entry else None
                if order["do"] == "claim":
                    word = "held" if not ahead and self._claim(gpu_request) else "refused"
                    self._gang.report(word, round=number)
                else:
                    is_able = not gpu_request.count
                    if not (is_able or ahead):
                        # When ready, look for claims of other runs only: to look for processes starts a program.
                        was_ready = word == "ready"
                        is_able = gpu_request.unclaimed if was_ready else bool(gpu_request.free())
                    reason = gpu_request.description if ahead else gpu_request.waiting_reason
                    word, why = ("ready", {}) if is_able else ("busy", {"why": reason})
                    self._gang.report(word, round=number, **why)
                    if not is_able:
                        self._pending(reason, GPU_QUEUE)
                    claims = [ahead] if ahead else gpu_request.claims
            wait_for_release(filter(is_held, claims), POLL_SECONDS, self._gang.descriptor)
        return False

    def _claim(self, gpu_request: GpuRequest) -> bool:
        self._gpus = gpu_request.claim(self._gpu_claims) if gpu_request.count else []
        return len(self._gpus) == gpu_request.count
