"""A rank's part in its gang, as its supervisor plays it. See DESIGN.md, "Gangs"."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import read_json, write_json
from trainctl.base.network.listener import listen, parse_port_range
from trainctl.base.protocol.spec import GangSpec, RunSpec
from trainctl.base.system.processes import boot_id
from trainctl.node.rendezvous.channel import DisconnectTimeouts, HelperPipe, HelperProcess
from trainctl.node.rendezvous.coordinator import Coordinator, PortReservation
from trainctl.node.rendezvous.coordinator_connection import CoordinatorConnection
from trainctl.node.rendezvous.coordinator_state import CoordinatorState, GangPolicy
from trainctl.node.rendezvous.gang_allocation import GangAllocation
from trainctl.node.rendezvous.root_cause import is_consequence
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import Attempt, AttemptEnd
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import Allocation, PendingFn
from trainctl.node.scheduling.rank_coordination import AttemptPolicy, RankCoordination, RunOutcome

_POLL_SECONDS = 0.25
_VERDICT_SECONDS = 3600.0
_FAREWELL_SECONDS = 15.0


class GangMember(RankCoordination):
    """One rank of several."""

    def __init__(
        self,
        run: NodeRun,
        spec: RunSpec,
        pending: PendingFn,
        deploying: Callable[[str], None],
        rendezvous: Optional[Mapping[str, Any]],
    ) -> None:
        """``deploying`` is called with what is waited for before the gang is in a queue."""
        super().__init__(run, spec, pending)
        self._deploying = deploying
        self._rendezvous = rendezvous
        self._rank = int(spec["rank"])
        self._gang = spec["gang"] or GangSpec()
        self._limits = DisconnectTimeouts(self._gang)
        self._helper: Optional[HelperProcess] = None
        self._layout: Dict[str, Any] = {}
        self._over: Optional[Dict[str, Any]] = None
        self._end: Optional[Dict[str, Any]] = None
        self._is_stop_reported = False
        self._began = False

    def join(self) -> None:
        """Rank 0 listens, the others call it."""
        self._helper = self._lead() if self._rank == 0 else self._follow()

    def _lead(self) -> HelperProcess:
        addresses = self._gang["addresses"]
        ports = parse_port_range(self._gang.get("ports"))
        token, port_reservation, retry = (
            secrets.token_hex(32),
            PortReservation(ports),
            AttemptPolicy.of(self._spec),
        )
        listeners = listen(addresses, ports)
        policy = GangPolicy(
            int(self._spec["group_size"]),
            addresses,
            retry.max_attempts,
            retry.delay_seconds,
            slot=bool(self._run.order.get("slots", self._spec.get("slots"))),
        )
        date = self._run.queued_ns
        rules = CoordinatorState(policy, port_reservation.allocate, port_reservation.release, date)
        generation = int(self._spec["generation"])
        coordinator = Coordinator(listeners, token, generation, rules, self._limits)
        helper = HelperProcess(
            lambda line: coordinator.work(line, boot_id()), [one.fileno() for one in listeners]
        )
        # Where this helper listens and what opens it; the other ranks are started with both.
        write_json(self._run.gang, {"port": listeners[0].getsockname()[1], "token": token})
        for listener in listeners:
            listener.close()
        return helper

    def _follow(self) -> HelperProcess:
        if self._rendezvous is None:
            raise Failure("request", "a rank of a gang was started without the way to rank 0")
        hello = {"host": boot_id(), "generation": int(self._spec["generation"])}
        addresses = self._gang["addresses"]
        port, token = int(self._rendezvous["port"]), str(self._rendezvous["token"])
        link = CoordinatorConnection(self._rank, hello, addresses, port, token, self._limits)
        return HelperProcess(link.work)

    def turn(self) -> Allocation:
        """All ranks wait for theirs together."""
        return GangAllocation(self._run, self._spec, self._pending, self)

    @property
    def line(self) -> HelperPipe:
        """To the helper. Failure before ``join``."""
        if self._helper is None:
            raise Failure("failed", "the gang was not joined")
        return self._helper.line

    @property
    def descriptor(self) -> int:
        """What can be read when something was decided."""
        return self.line.fileno()

    def send_value(self, value: Dict[str, Any]) -> None:
        """Report to the coordinator."""
        self.line.send_value(value)

    def heard(self, seconds: float = 0.0) -> List[Dict[str, Any]]:
        """What was decided; waits so long for it. What concerns every stage is noted on the way."""
        found = self.line.arrived(seconds)
        for value in found:
            self._note(value)
        if not self.line.open and self._over is None:
            cause = {"rank": self._rank, "status": runs.LOST, "exit_code": None}
            self._over = {"cause": {**cause, "error": "its helper was killed"}, "alone": "lost"}
        return found

    def _note(self, value: Dict[str, Any]) -> None:
        does = value.get("do")
        if does == "over":
            self._over = value
        elif does == "end":
            self._end = value
            if value.get("grace") is not None:
                write_json(self._run.directory / "stop.json", {"grace_seconds": value["grace"]})
        elif does == "lay out":
            self._layout, self._end = value, None
        elif does == "wait":
            why = str(value.get("why"))
            if why.startswith("waits for rank") and ":" not in why:
                self._deploying(why)
            else:
                self._pending(why, None)

    @property
    def over(self) -> bool:
        """Whether nothing will happen any more."""
        return self._over is not None

    def until(self, *words: str) -> Optional[Dict[str, Any]]:
        """Wait for one of these decisions; None if the gang is over, or a stop is requested."""
        while not self.over and signal.SIGTERM not in signal.sigpending():
            for value in self.heard(_POLL_SECONDS):
                if value.get("do") in words:
                    return value
        return None

    def wait_for_layout(self) -> bool:
        """The turn ends with the first attempt's layout; later ones are announced."""
        return not self.over and (bool(self._layout) or self.until("lay out") is not None)

    @property
    def variables(self) -> Dict[str, str]:
        """Rank 0's address as all ranks reach it, and the port that is kept free for the job."""
        leader = str(self._layout["leader"])
        found = {
            "BT_LEADER_ADDR": leader,
            "MASTER_ADDR": leader,
            "MASTER_PORT": str(self._layout["port"]),
        }
        declared = {**self._spec["environment"], **self._spec.get("secret_environment", {})}
        return {
            name: one for name, one in found.items() if name not in declared or name[:2] == "BT"
        }

    def begin(self) -> bool:
        """All ranks together."""
        self._layout = {}
        loaded = [[one["run"], one["name"]] for one in self._run.record.get("loaded") or ()]
        self.send_value({"is": "prepared", "loaded": sorted(loaded)})
        self._began = self.until("go") is not None
        return self._began

    def chores(self, attempt: Attempt) -> List[Callable[[], None]]:
        """End this rank when the gang ends, and report that a stop was requested."""

        def tend() -> None:
            self.heard()
            if self._end is not None or self._over is not None:
                attempt.end()
            elif attempt.stopped:
                self._report_stop()

        return [tend]

    def settle(
        self, ending: RunOutcome, ended: AttemptEnd, number: int, note: Callable[[str], None]
    ) -> Optional[RunOutcome]:
        """The gang decides once all of its ranks have ended."""
        suspicious = ending.status == runs.FAILED and not ended.expired
        self.send_value(
            {
                "is": "ended",
                "status": ending.status,
                "code": ended.code,
                "error": ending.error,
                "expired": ended.expired,
                "consequence": suspicious and is_consequence(self._run.tail(self._rank)),
                "grace": self._grace,
            }
        )
        value = self._verdict("again")
        if value is None:
            return self._final(ending)
        note(cause_text(value["cause"]))
        return None

    def leave(self, ending: RunOutcome) -> RunOutcome:
        """Tell why this rank does not go on, if it is not over yet, and hear what became of the others."""
        if ending.root_cause is not None or self._helper is None:
            return ending
        self.heard()
        if self._over is None:
            if ending.status == runs.STOPPED:
                self._report_stop()
            else:
                self.send_value({"is": "failed", "error": ending.error})
            self._verdict()
        return self._final(ending)

    def close(self) -> None:
        """What rank 0's helper still has to tell the others, it may."""
        if self._helper is not None:
            self._helper.finish(_FAREWELL_SECONDS)
            with contextlib.suppress(FileNotFoundError):
                self._run.gang.unlink()

    @property
    def _grace(self) -> Optional[float]:
        asked = read_json(self._run.directory / "stop.json") or {}
        return asked.get("grace_seconds")

    def _report_stop(self) -> None:
        if not self._is_stop_reported:
            self._is_stop_reported = True
            self.send_value({"is": "stop", "grace": self._grace})

    def _verdict(self, *words: str) -> Optional[Dict[str, Any]]:
        """The decision about an attempt that has ended; None once it is over. Who stops meanwhile stops all."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        while not self.over and time.monotonic() < deadline:
            for value in self.heard(_POLL_SECONDS):
                if value.get("do") in words:
                    return value
            if signal.SIGTERM in signal.sigpending():
                self._report_stop()
        return None

    def _final(self, own: RunOutcome) -> RunOutcome:
        """This rank's ending, seen from the gang's."""
        over = self._over or {}
        cause = over.get("cause")
        if over.get("alone") and own.status in (runs.COMPLETED, runs.FAILED):
            return own  # its own commands had ended, which is known even if rank 0 is gone
        if not cause or (over.get("alone") and self._is_stop_reported):
            return own  # a stop that was requested here didn't reach the others
        status = str(cause.get("status") or runs.LOST)
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
        how = "was lost" if status == runs.LOST else "failed"
        return RunOutcome(
            runs.STOPPED,
            own.exit_code,
            f"ended because rank {cause['rank']} {how}",
            root_cause=cause,
        )


def cause_text(cause: Mapping[str, Any]) -> str:
    """What happened to the rank that is the cause: ``rank 2 failed: command 1 exited with 3``."""
    error, rank = str(cause.get("error") or "ended"), f"rank {cause.get('rank')}"
    if error.startswith("rank "):
        return error
    if cause.get("status") == runs.LOST:
        return f"{rank} {error}"
    how = "failed" if cause.get("status") == runs.FAILED else "could not begin"
    return f"{rank} {how}: {error}"
