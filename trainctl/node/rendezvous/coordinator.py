"""Decide what each rank of a gang does next, from the current state of all. See DESIGN.md.

No I/O and no clock: ``now`` is the caller's time in seconds.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, Optional, Sequence, Set

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.protocol.runs import GangSpec
from trainctl.errors import TrainctlError
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
    end: str = "all"  # jobs have "any" by default: scripts of Baseten's ml-cookbook let all but one rank sleep
    end_grace: float = 0.0


class GangTimeouts:
    """Seconds until the other side counts as lost."""

    def __init__(self, gang: Optional[GangSpec] = None) -> None:
        gang = gang or GangSpec()
        self.closed = gang.get("disconnect_timeout", 10.0)
        self.silent = gang.get("silence_timeout", 60.0)
        self.heartbeat = min(2.0, self.silent / 10)
        """How long rank 0 holds a request while the order doesn't change."""
        self.answer = self.silent / 4
        """Longest wait for an answer, before another connection is tried."""
        self.connect = min(3.0, self.answer)


class Coordinator:
    """A gang from joining to its end: states of ranks go in, ``orders`` come out.

    A state and an order replace the earlier ones of the rank; to repeat a state changes nothing.
    """

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
        self._states: Dict[int, Value] = {}
        self._leader = ""
        self._stage = "joining"
        self._round = 1
        self._claim_sent_at = self._not_before = 0.0
        self._attempt = 0
        self._ended: Dict[int, Value] = {}
        self._collect_until: Optional[float] = None
        self._complete_at: Optional[float] = None
        self._cause: Optional[Value] = None
        self._final = False
        self.unreachable: Set[int] = set()
        """Ranks that are unreachable at the moment."""
        self.version = 0
        """Number of the last order."""
        self.orders: Dict[int, Value] = {}
        self._order_all({"do": "join"})

    @property
    def over(self) -> bool:
        """Whether the outcome is decided."""
        return self._stage == "over"

    def update(self, rank: int, state: Value, now: float) -> None:
        """Take note of a rank's current state."""
        known = self._states.get(rank, state)
        if self.over:
            return
        self._states[rank] = state
        if known["instance"] != state["instance"] and self._attempt:
            self.lose(rank, "its supervisor was restarted", now)
        if "stop" in state:
            self._stop(rank, state["stop"])
        if state["is"] == "failed":
            self._fail(rank, state, now)
        elif state["is"] == "ended" and state["attempt"] == self._attempt:
            self._end(rank, state, now)
        self.tick(now)

    def lose(self, rank: int, reason: str, now: float) -> None:
        """Handle the loss of a rank."""
        self._fail(rank, {"status": runs.LOST, "error": f"was lost: {reason}"}, now)

    def tick(self, now: float) -> None:
        """Enter the next stage if all ranks have finished this one, or its time is over."""
        if self._stage == "joining":
            self._join()
        elif self._stage == "slotting" and self._states[0]["is"] == "slotted":
            self._queue()
        elif self._stage == "queueing":
            self._wait_until_ready(now)
        elif self._stage == "claiming":
            self._claim(now)
        elif self._stage == "preparing":
            if all(self._is(rank, "prepared", attempt=self._attempt) for rank in self._all):
                self._start()
        elif self._stage == "running":
            self._tick_running(now)
        elif self._stage == "pausing" and now >= self._not_before:
            self._prepare_attempt()

    def _tick_running(self, now: float) -> None:
        if self._collect_until is not None:
            missing = [rank for rank in self.unreachable if rank not in self._ended]
            if now >= self._collect_until and not missing:
                self._decide()
        elif self._complete_at is not None and now >= self._complete_at:
            # that is enough: stop the ranks that remain
            rank = next(iter(self._ended))
            self._cause, self._final = _cause(rank, runs.COMPLETED, None), True
            self._end_others(None)

    def _is(self, rank: int, word: str, **members: int) -> bool:
        state = self._states[rank]
        return state["is"] == word and all(state[name] == members[name] for name in members)

    def _join(self) -> None:
        here = [rank for rank in self._all if self._states.get(rank, {}).get("is") == "here"]
        missing = [rank for rank in self._all if rank not in here]
        if missing:
            waits = f"waits for {_rank_names(missing)} of {self._policy.size}"
            self._order_all({"do": "join", "why": waits})
            return
        reached = {rank: set(self._states[rank].get("reached", ())) for rank in self._all if rank}
        common = [
            address
            for address in self._policy.addresses
            if all(address in addresses for addresses in reached.values())
        ]
        if not common:
            isolated = [rank for rank, addresses in reached.items() if not addresses]
            names = _rank_names(isolated) if isolated else "all ranks"
            error = f"no address of rank 0 is reachable from {names}"
            tried = ", ".join(self._policy.addresses)
            self._finish(_cause(0, runs.DEPLOY_FAILED, f"{error}: tried {tried}"))
            return
        self._leader = common[0]
        if self._policy.slot:
            self._stage = "slotting"
            self._order_all({"do": "wait", "why": "waits for a slot of its sweep"})
            self._order(0, {"do": "slot"})
        else:
            self._queue()

    def _queue(self) -> None:
        self._stage = "queueing"
        self._order_all({"do": "queue", "date": self._date, "round": self._round})

    def _wait_until_ready(self, now: float) -> None:
        waiting = [rank for rank in self._all if not self._is(rank, "ready", round=self._round)]
        if not waiting and now >= self._not_before:
            self._stage = "claiming"
            self._claim(now)
        for busy in waiting:
            if self._is(busy, "busy", round=self._round):
                reason = self._states[busy]["why"]
                if reason.startswith(_WAITS_PREFIX):
                    reason = reason[len(_WAITS_PREFIX) :]
                for rank in self._all:
                    if rank != busy:
                        why = f"{_WAITS_PREFIX}rank {busy}: {reason}"
                        self._order(rank, {**self.orders[rank], "why": why})
                break

    def _claim(self, now: float) -> None:
        """Order claims one after another, host by host: the same order for all gangs."""
        for rank in sorted(self._all, key=lambda rank: (self._states[rank]["host"], rank)):
            if self._is(rank, "held", round=self._round):
                continue
            if self._is(rank, "refused", round=self._round):
                self._release_claims(now)
            elif self.orders[rank]["do"] != "claim":
                self._claim_sent_at = now
                claim = {"do": "claim", "date": self._date, "round": self._round}
                self._order(rank, claim)
            elif now - self._claim_sent_at > _CLAIM_SECONDS:
                self._release_claims(now)
            return
        self._prepare_attempt()

    def _release_claims(self, now: float) -> None:
        """Release claims that others could use, and claim again after a pause."""
        self._round += 1
        self._not_before = now + random.uniform(*_BACK_OFF_SECONDS)  # noqa: S311 - no secret
        self._queue()

    def _prepare_attempt(self) -> None:
        last = self._cause
        self._attempt += 1
        self._stage = "preparing"
        self._ended = {}
        self._cause, self._collect_until, self._complete_at = None, None, None
        try:
            port = self._allocate()
        except TrainctlError as error:
            text = f"{error.summary}. {error.detail}"
            self._finish(_cause(0, runs.DEPLOY_FAILED, text))
            return
        order = {"do": "prepare", "attempt": self._attempt, "leader": self._leader, "port": port}
        self._order_all({**order, "cause": last})

    def _start(self) -> None:
        loaded = [
            [f"{run}: {name}" for run, name in self._states[rank].get("loaded", ())]
            for rank in self._all
        ]
        other = next((rank for rank in self._all if loaded[rank] != loaded[0]), None)
        if other is not None:
            own, first = (", ".join(loaded[rank]) or "nothing" for rank in (other, 0))
            error = f"it would start from {own}, rank 0 from {first}"
            remedy = "store checkpoints where all nodes see them"
            self._finish(_cause(other, runs.DEPLOY_FAILED, f"{error}: {remedy}"))
            return
        self._stage = "running"
        self._release()
        self._order_all({"do": "go", "attempt": self._attempt})

    def _stop(self, rank: int, stop: Value) -> None:
        self._final = True
        cause = _cause(rank, runs.STOPPED, stop.get("error"))
        if self._stage == "running":
            self._cause = cause
            self._end_others(stop.get("grace"))
        elif self._stage != "ending":
            self._finish(cause)

    def _fail(self, rank: int, state: Value, now: float) -> None:
        """Handle a rank that could not start its commands, or is lost."""
        if self.over:
            return
        self._final = True
        if self._stage in ("running", "ending"):
            if self._ended.get(rank, {}).get("status") == runs.COMPLETED:
                del self._ended[rank]  # its commands completed, but not the run
            self._end(rank, {**state, "code": None}, now)
        else:
            self._finish(_cause(rank, state["status"], state.get("error")))

    def _end(self, rank: int, state: Value, now: float) -> None:
        """Handle the end of a rank's commands."""
        if rank in self._ended or self._stage not in ("running", "ending"):
            return
        self._ended[rank] = state
        if state["status"] == runs.STOPPED and self._cause is None:
            self._final = True
            self._cause = _cause(rank, runs.STOPPED, state.get("error"))
            self._end_others(state.get("grace"))
        failed = self._failures
        if self._stage == "running" and failed:
            if not all(end["consequence"] for end in failed.values()):
                self._decide()
            elif self._collect_until is None:
                self._collect_until = now + COLLECT_SECONDS
        elif self._stage == "running" and self._complete_at is None:
            is_enough = {"any": True, "leader": 0 in self._ended, "all": False}[self._policy.end]
            self._complete_at = now + self._policy.end_grace if is_enough else None
        if len(self._ended) == len(self._all):
            if self._stage == "running" and failed:
                self._decide()
            if self._cause is None or self._final or self._attempt >= self._policy.max_attempts:
                self._finish(self._cause)
                return
            self._stage = "pausing"
            self._not_before = now + self._policy.delay_seconds
            self._order_all({"do": "again", "attempt": self._attempt + 1, "cause": self._cause})

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
                self._order(rank, {"do": "end", "grace": grace, "cause": self._cause})

    def _finish(self, cause: Optional[Value]) -> None:
        self._stage = "over"
        self._release()
        self._order_all({"do": "over", "cause": cause})

    def _order_all(self, order: Value) -> None:
        for rank in self._all:
            self._order(rank, order)

    def _order(self, rank: int, order: Value) -> None:
        version = self.orders.get(rank, {}).get("version")
        if {**order, "version": version} != self.orders.get(rank):
            self.version += 1
            self.orders[rank] = {**order, "version": self.version}


def _cause(rank: int, status: str, error: Optional[str], code: Optional[int] = None) -> Value:
    return {"rank": rank, "status": status, "exit_code": code, "error": error}


def _rank_names(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2``; long lists are truncated."""
    first = ", ".join(str(rank) for rank in ranks[:8]) + (" \u2026" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {first}"
