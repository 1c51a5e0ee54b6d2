"""State machine of a gang. See DESIGN.md, "Gangs".

No I/O and no clock: received messages go in, messages to send come out, ``now`` is the caller's time in seconds.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from trainctl.base.failure import Failure
from trainctl.node.runs import record as runs

COLLECT_SECONDS = 5.0
"""How long to wait for other exits if the first one looks like a consequence."""

_CLAIM_SECONDS = 60.0
"""Timeout of a rank's claim: a GPU driver may be slow."""

_BACK_OFF_SECONDS = (1.0, 5.0)
"""Range of the pause before claiming again, random so that two gangs don't collide forever."""

_NO_OWN_ERROR = "It ended first, but each failed rank only reports broken connections"
"""Added to the error if the first cause was not printed, for example because torchrun ended that worker."""

_WAITS_PREFIX = "waits for "
"""Prefix of a rank's reason, not repeated in reports to the other ranks."""

Value = Dict[str, Any]


class GangPolicy(NamedTuple):
    """Settings of a gang; ``addresses`` of rank 0 by preference, ``slot`` if needed.

    ``end``: whether it completes when ``any`` rank, the ``leader`` or ``all`` have; the others are stopped
    ``end_grace`` seconds later.
    """

    size: int
    addresses: Sequence[str]
    max_attempts: int = 1
    delay_seconds: float = 0.0
    slot: bool = False
    end: str = "all"
    end_grace: float = 0.0


class CoordinatorState:
    """A gang from joining to its end; messages collect in ``outbox``."""

    def __init__(
        self,
        policy: GangPolicy,
        allocate: Callable[[], int],
        release: Callable[[], None],
        date: int,
    ) -> None:
        """``allocate`` and ``release`` the job's port; ``date``: position in queues."""
        self._policy = policy
        self._allocate = allocate
        self._release = release
        self._date = date
        self._all = range(policy.size)
        self._hosts: Dict[int, str] = {}
        self._reached: Dict[int, Set[str]] = {}
        self._leader = ""
        self._stage = "joining"
        self._done: Set[int] = set()
        self._claimed: List[int] = []
        self._claim_sent_at = self._not_before = 0.0
        self._attempt = 0
        self._ended: Dict[int, Value] = {}
        self._collect_until: Optional[float] = None
        self._complete_at: Optional[float] = None
        self._loaded: Dict[int, List[str]] = {}
        self._cause: Optional[Value] = None
        self._final = False
        self._unreachable: Set[int] = set()
        self._wait_reason = ""
        self.outbox: List[Tuple[int, Value]] = []

    @property
    def over(self) -> bool:
        """Whether the outcome is decided."""
        return self._stage == "over"

    def join(self, rank: int, host: str, reached: Sequence[str]) -> None:
        """Add a rank; ``host``: its machine, ``reached``: reachable addresses of rank 0."""
        self._hosts[rank] = host
        self._reached[rank] = set(reached)

    def set_unreachable(self, ranks: Set[int]) -> None:
        """Update the set of ranks that are unreachable at the moment."""
        self._unreachable = ranks

    def receive(self, rank: int, value: Mapping[str, Any], now: float) -> None:
        """Handle a message of a rank."""
        if self.over:
            return
        state = value.get("is")
        if state == "stop":
            self._stop(rank, value)
        elif state == "failed":
            self._fail(rank, runs.DEPLOY_FAILED, value, now)
        elif state == "ended":
            self._end(rank, value, now)
        else:
            self._advance(rank, str(state), value, now)
        self.tick(now)

    def lose(self, rank: int, reason: str, now: float) -> None:
        """Handle the loss of a rank."""
        if not self.over:
            error = f"was lost: {reason}"
            self._fail(rank, runs.LOST, {"error": error}, now)

    def tick(self, now: float) -> None:
        """Handle timeouts."""
        if self._stage == "claiming" and now - self._claim_sent_at > _CLAIM_SECONDS:
            self._release_claims(now)
        elif self._stage == "queueing" and len(self._done) == len(self._all):
            if now >= self._not_before:
                self._stage, self._claimed = "claiming", []
                self._send_next_claim(now)
        elif self._stage == "running":
            self._tick_running(now)
        elif self._stage == "pausing" and now >= self._not_before:
            self._prepare_attempt()

    def _tick_running(self, now: float) -> None:
        if self._collect_until is not None:
            missing = [rank for rank in self._unreachable if rank not in self._ended]
            if now >= self._collect_until and not missing:
                self._decide()
        elif self._complete_at is not None and now >= self._complete_at:
            self._complete()

    def _advance(self, rank: int, state: str, value: Mapping[str, Any], now: float) -> None:
        if state == "here" and self._stage == "joining":
            self._mark_done(rank, self._finish_joining)
        elif state == "slotted" and self._stage == "slotting":
            self._queue()
        elif state in ("ready", "busy") and self._stage == "queueing":
            self._note_ready(rank, state == "ready", str(value.get("why", "")))
        elif state in ("held", "refused") and self._stage == "claiming":
            self._note_claim(rank, state == "held", now)
        elif state == "prepared" and self._stage == "laying out":
            self._loaded[rank] = [f"{run}: {name}" for run, name in value.get("loaded", ())]
            self._mark_done(rank, self._start)

    def _mark_done(self, rank: int, then: Callable[[], None]) -> None:
        """Record that a rank has finished the stage; call ``then`` once all have."""
        self._done.add(rank)
        if len(self._done) == len(self._all):
            self._done = set()
            then()
        elif self._stage == "joining":
            missing = [rank for rank in self._all if rank not in self._done]
            self._report_wait(
                f"waits for {_rank_names(missing)} of {self._policy.size}", self._done
            )

    def _finish_joining(self) -> None:
        common = [
            address
            for address in self._policy.addresses
            if all(address in self._reached[rank] for rank in self._all if rank)
        ]
        if not common:
            isolated = [rank for rank in self._all if rank and not self._reached[rank]]
            names = _rank_names(isolated) if isolated else "all ranks"
            error = f"no address of rank 0 is reachable from {names}"
            tried = ", ".join(self._policy.addresses)
            self._finish(_cause(0, runs.DEPLOY_FAILED, f"{error}: tried {tried}"))
            return
        self._leader = common[0]
        if self._policy.slot:
            self._stage = "slotting"
            self._send(0, {"do": "slot"})
            self._report_wait("waits for a slot of its sweep", set(self._all) - {0})
        else:
            self._queue()

    def _queue(self) -> None:
        self._stage = "queueing"
        self._broadcast({"do": "queue", "date": self._date})

    def _note_ready(self, rank: int, ready: bool, reason: str) -> None:
        if ready:
            self._done.add(rank)
        else:
            self._done.discard(rank)
            text = reason[len(_WAITS_PREFIX) :] if reason.startswith(_WAITS_PREFIX) else reason
            self._report_wait(f"{_WAITS_PREFIX}rank {rank}: {text}", set(self._all) - {rank})

    def _note_claim(self, rank: int, held: bool, now: float) -> None:
        if rank != self._claim_order[len(self._claimed)]:
            return  # response to a claim that was cancelled
        if not held:
            self._release_claims(now)
            return
        self._claimed.append(rank)
        if len(self._claimed) == len(self._all):
            self._prepare_attempt()
        else:
            self._send_next_claim(now)

    @property
    def _claim_order(self) -> List[int]:
        """Order of claims, the same for all gangs: host by host."""
        return sorted(self._all, key=lambda rank: (self._hosts[rank], rank))

    def _send_next_claim(self, now: float) -> None:
        self._claim_sent_at = now
        self._send(self._claim_order[len(self._claimed)], {"do": "claim"})

    def _release_claims(self, now: float) -> None:
        """Release claims that others could use, and claim again after a pause."""
        self._broadcast({"do": "release"})
        self._done, self._claimed = set(), []
        self._stage = "queueing"
        self._not_before = now + random.uniform(*_BACK_OFF_SECONDS)  # noqa: S311 - no secret

    def _prepare_attempt(self) -> None:
        self._attempt += 1
        self._stage = "laying out"
        self._done, self._ended = set(), {}
        self._cause, self._collect_until, self._complete_at = None, None, None
        try:
            port = self._allocate()
        except Failure as error:
            text = f"{error.summary}. {error.detail}"
            self._finish(_cause(0, runs.DEPLOY_FAILED, text))
            return
        self._broadcast(
            {"do": "lay out", "attempt": self._attempt, "leader": self._leader, "port": port}
        )

    def _start(self) -> None:
        first = self._loaded[0]
        other = next((rank for rank in self._all if self._loaded[rank] != first), None)
        if other is not None:
            differs = _difference_text(self._loaded[other], first)
            self._finish(_cause(other, runs.DEPLOY_FAILED, differs))
            return
        self._stage = "running"
        self._release()
        self._broadcast({"do": "go"})

    def _stop(self, rank: int, value: Mapping[str, Any]) -> None:
        cause = _cause(rank, runs.STOPPED, value.get("error"))
        self._final = True
        if self._stage == "running":
            self._cause = cause
            self._end_others(value.get("grace"))
        elif self._stage != "ending":
            self._finish(cause)

    def _fail(self, rank: int, status: str, value: Mapping[str, Any], now: float) -> None:
        """Handle a rank that could not start its commands, or is lost."""
        cause = _cause(rank, status, value.get("error"))
        self._final = True
        if self._stage not in ("running", "ending"):
            self._finish(cause)
            return
        self._ended[rank] = {"status": status, "error": value.get("error"), "code": None}
        self._note_end(now)

    def _end(self, rank: int, value: Mapping[str, Any], now: float) -> None:
        """Handle the end of a rank's commands."""
        if self._stage not in ("running", "ending"):
            return
        self._ended[rank] = dict(value)
        if value.get("status") == runs.STOPPED and self._cause is None:
            self._final = True
            self._cause = _cause(rank, runs.STOPPED, value.get("error"))
            self._end_others(value.get("grace"))
        self._note_end(now)

    def _note_end(self, now: float) -> None:
        failed = self._failures
        if self._stage == "running" and failed:
            if not all(end["consequence"] for end in failed.values()):
                self._decide()
            elif self._collect_until is None:
                self._collect_until = now + COLLECT_SECONDS
        elif self._stage == "running" and self._complete_at is None and self._completes:
            self._complete_at = now + self._policy.end_grace
        if len(self._ended) == len(self._all):
            if self._stage == "running" and failed:
                self._decide()
            self._conclude(now)

    @property
    def _completes(self) -> bool:
        """Whether the ranks that have completed complete the gang."""
        end = self._policy.end
        return end == "any" or (end == "leader" and 0 in self._ended)

    def _complete(self) -> None:
        """Stop the ranks that remain after others have completed."""
        rank = next(iter(self._ended))
        self._cause, self._final = _cause(rank, runs.COMPLETED, None), True
        self._end_others(None)

    @property
    def _failures(self) -> Dict[int, Value]:
        """Ranks that failed on their own, in the order of the reports."""
        return {
            rank: {"consequence": False, **end}
            for rank, end in self._ended.items()
            if end["status"] not in (runs.COMPLETED, runs.STOPPED)
        }

    def _decide(self) -> None:
        """Determine the root cause and stop the other ranks."""
        failures = self._failures
        causes = (rank for rank, end in failures.items() if not end["consequence"])
        rank = next(causes, next(iter(failures)))
        end = failures[rank]
        error = end.get("error")
        if end["consequence"] and len(failures) > 1:
            error = f"{error}. {_NO_OWN_ERROR}"
        self._cause = _cause(rank, end["status"], error, end.get("code"))
        self._final = self._final or bool(end.get("expired"))
        self._end_others(None)

    def _end_others(self, grace: Optional[float]) -> None:
        self._stage, self._collect_until = "ending", None
        for rank in self._all:
            if rank not in self._ended:
                self._send(rank, {"do": "end", "grace": grace, "cause": self._cause})

    def _conclude(self, now: float) -> None:
        """Retry or finish, after the commands of all ranks have ended."""
        may_retry = self._attempt < self._policy.max_attempts and not self._final
        if self._cause is None or not may_retry:
            self._finish(self._cause)
            return
        self._stage = "pausing"
        self._not_before = now + self._policy.delay_seconds
        self._broadcast({"do": "again", "cause": self._cause})

    def _finish(self, cause: Optional[Value]) -> None:
        self._stage = "over"
        self._release()
        self._broadcast({"do": "over", "cause": cause})

    def _report_wait(self, reason: str, ranks: Set[int]) -> None:
        if reason != self._wait_reason:
            self._wait_reason = reason
            for rank in sorted(ranks):
                self._send(rank, {"do": "wait", "why": reason})

    def _broadcast(self, value: Value) -> None:
        self._wait_reason = ""
        for rank in self._all:
            self._send(rank, value)

    def _send(self, rank: int, value: Value) -> None:
        self.outbox.append((rank, value))


def _cause(rank: int, status: str, error: Optional[str], code: Optional[int] = None) -> Value:
    return {"rank": rank, "status": status, "exit_code": code, "error": error}


def _difference_text(actual: Sequence[str], expected: Sequence[str]) -> str:
    """Error for ranks that would resume from different checkpoints."""
    own, first = ", ".join(actual) or "nothing", ", ".join(expected) or "nothing"
    return f"it would start from {own}, rank 0 from {first}: store checkpoints where all nodes see them"


def _rank_names(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2``; long lists are truncated."""
    first = ", ".join(str(rank) for rank in ranks[:8]) + (" \u2026" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {first}"
