"""When the ranks of a gang queue, claim, begin, end and begin again: what was heard in, what is to be said out. See DESIGN.md, "Gangs".

Nothing here waits, sends or looks at a clock: ``now`` is a number of seconds by the caller's clock.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from trainctl.base.failure import Failure
from trainctl.node.runs import record as runs

COLLECT_SECONDS = 5.0
"""How long other exits are waited for when the first one looks like a consequence."""

_CLAIM_SECONDS = 60.0
"""How long a rank may take to claim: a GPU's driver may be slow."""

_BACK_OFF_SECONDS = (1.0, 5.0)
"""Between which a gang waits before it tries to claim again, so that two don't meet for ever."""

_WAITS_PREFIX = "waits for "
"""What a rank's reason begins with, which those who wait for that rank need not say twice."""

Value = Dict[str, Any]


class GangPolicy(NamedTuple):
    """What of the specification decides: ranks, addresses of rank 0 in the order they are preferred, retries, whether a slot is needed."""

    size: int
    addresses: Sequence[str]
    max_attempts: int = 1
    delay_seconds: float = 0.0
    slot: bool = False


class CoordinatorState:
    """A gang from the joining of its ranks to its end. What is to be said gathers in ``outbox`` as (rank, value)."""

    def __init__(
        self,
        policy: GangPolicy,
        allocate: Callable[[], int],
        release: Callable[[], None],
        date: int,
    ) -> None:
        """``allocate`` and ``release`` a port for the job; ``date`` orders this gang among those that wait."""
        self._policy = policy
        self._allocate = allocate
        self._release = release
        self._date = date
        self._all = range(policy.size)
        self._hosts: Dict[int, str] = {}
        self._reached: Dict[int, Set[str]] = {}
        self._leader = ""
        self._stage = "joining"
        self._marked: Set[int] = set()
        self._claimed: List[int] = []
        self._asked_at = self._not_before = 0.0
        self._attempt = 0
        self._ended: Dict[int, Value] = {}
        self._collect_until: Optional[float] = None
        self._loaded: Dict[int, List[str]] = {}
        self._cause: Optional[Value] = None
        self._final = False
        self._unreachable: Set[int] = set()
        self._why = ""
        self.outbox: List[Tuple[int, Value]] = []

    @property
    def over(self) -> bool:
        """Whether everything is decided."""
        return self._stage == "over"

    def join(self, rank: int, host: str, reached: Sequence[str]) -> None:
        """A rank is there; ``host`` names its machine, ``reached`` the addresses of rank 0 that it reached."""
        self._hosts[rank] = host
        self._reached[rank] = set(reached)

    def set_unreachable(self, ranks: Set[int]) -> None:
        """Note the ranks that are silent at the moment."""
        self._unreachable = ranks

    def receive(self, rank: int, value: Mapping[str, Any], now: float) -> None:
        """What a rank says of itself."""
        if self.over:
            return
        what = value.get("is")
        if what == "stop":
            self._stop(rank, value)
        elif what == "failed":
            self._fail(rank, runs.DEPLOY_FAILED, value, now)
        elif what == "ended":
            self._end(rank, value, now)
        else:
            self._go_on(rank, str(what), value, now)
        self.tick(now)

    def lose(self, rank: int, how: str, now: float) -> None:
        """A rank is there no more."""
        if not self.over:
            error = f"was lost: {how}"
            self._fail(rank, runs.LOST, {"error": error}, now)

    def tick(self, now: float) -> None:
        """What time alone decides."""
        if self._stage == "claiming" and now - self._asked_at > _CLAIM_SECONDS:
            self._give_back(now)
        elif self._stage == "queueing" and len(self._marked) == len(self._all):
            if now >= self._not_before:
                self._stage, self._claimed = "claiming", []
                self._ask_next(now)
        elif self._stage == "running" and self._collect_until is not None:
            left = [rank for rank in self._unreachable if rank not in self._ended]
            if now >= self._collect_until and not left:
                self._decide()
        elif self._stage == "pausing" and now >= self._not_before:
            self._lay_out()

    def _go_on(self, rank: int, what: str, value: Mapping[str, Any], now: float) -> None:
        if what == "here" and self._stage == "joining":
            self._mark(rank, self._joined)
        elif what == "slotted" and self._stage == "slotting":
            self._queue()
        elif what in ("ready", "busy") and self._stage == "queueing":
            self._note_ready(rank, what == "ready", str(value.get("why", "")))
        elif what in ("held", "refused") and self._stage == "claiming":
            self._note_claim(rank, what == "held", now)
        elif what == "prepared" and self._stage == "laying out":
            self._loaded[rank] = [f"{run}: {name}" for run, name in value.get("loaded", ())]
            self._mark(rank, self._go)

    def _mark(self, rank: int, then: Callable[[], None]) -> None:
        """Note that a rank has come so far; go on once all have."""
        self._marked.add(rank)
        if len(self._marked) == len(self._all):
            self._marked = set()
            then()
        elif self._stage == "joining":
            absent = [rank for rank in self._all if rank not in self._marked]
            self._report_wait(
                f"waits for {_rank_names(absent)} of {self._policy.size}", self._marked
            )

    def _joined(self) -> None:
        common = [
            address
            for address in self._policy.addresses
            if all(address in self._reached[rank] for rank in self._all if rank)
        ]
        if not common:
            blind = [rank for rank in self._all if rank and not self._reached[rank]]
            error = (
                f"no address of rank 0 is reached by {_rank_names(blind) if blind else 'all ranks'}"
            )
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

    def _note_ready(self, rank: int, ready: bool, why: str) -> None:
        if ready:
            self._marked.add(rank)
        else:
            self._marked.discard(rank)
            what = why[len(_WAITS_PREFIX) :] if why.startswith(_WAITS_PREFIX) else why
            self._report_wait(f"{_WAITS_PREFIX}rank {rank}: {what}", set(self._all) - {rank})

    def _note_claim(self, rank: int, held: bool, now: float) -> None:
        if rank != self._order[len(self._claimed)]:
            return  # an answer to what was asked before it was taken back
        if not held:
            self._give_back(now)
            return
        self._claimed.append(rank)
        if len(self._claimed) == len(self._all):
            self._lay_out()
        else:
            self._ask_next(now)

    @property
    def _order(self) -> List[int]:
        """The same for all gangs: host by host."""
        return sorted(self._all, key=lambda rank: (self._hosts[rank], rank))

    def _ask_next(self, now: float) -> None:
        self._asked_at = now
        self._send(self._order[len(self._claimed)], {"do": "claim"})

    def _give_back(self, now: float) -> None:
        """Hold nothing that others could use while this gang can't."""
        self._broadcast({"do": "release"})
        self._marked, self._claimed = set(), []
        self._stage = "queueing"
        self._not_before = now + random.uniform(*_BACK_OFF_SECONDS)  # noqa: S311 - so that two don't meet again

    def _lay_out(self) -> None:
        self._attempt += 1
        self._stage = "laying out"
        self._marked, self._ended = set(), {}
        self._cause, self._collect_until = None, None
        try:
            port = self._allocate()
        except Failure as error:
            why = f"{error.summary}. {error.detail}"
            self._finish(_cause(0, runs.DEPLOY_FAILED, why))
            return
        found = {"do": "lay out", "attempt": self._attempt, "leader": self._leader, "port": port}
        self._broadcast(found)

    def _go(self) -> None:
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
        cause = _cause(rank, runs.STOPPED, None)
        self._final = True
        if self._stage == "running":
            self._cause = cause
            self._end_others(value.get("grace"))
        elif self._stage != "ending":
            self._finish(cause)

    def _fail(self, rank: int, status: str, value: Mapping[str, Any], now: float) -> None:
        """A rank that has no commands: it could not begin them, or is gone."""
        cause = _cause(rank, status, value.get("error"))
        self._final = True
        if self._stage not in ("running", "ending"):
            self._finish(cause)
            return
        self._ended[rank] = {"status": status, "error": value.get("error"), "code": None}
        self._note_end(now)

    def _end(self, rank: int, value: Mapping[str, Any], now: float) -> None:
        """A rank's commands have ended."""
        if self._stage not in ("running", "ending"):
            return
        self._ended[rank] = dict(value)
        if value.get("status") == runs.STOPPED and self._cause is None:
            self._final = True
            self._cause = _cause(rank, runs.STOPPED, None)
            self._end_others(value.get("grace"))
        self._note_end(now)

    def _note_end(self, now: float) -> None:
        failed = self._failures
        if self._stage == "running" and failed:
            if not all(one["consequence"] for one in failed.values()):
                self._decide()
            elif self._collect_until is None:
                self._collect_until = now + COLLECT_SECONDS
        if len(self._ended) == len(self._all):
            if self._stage == "running" and failed:
                self._decide()
            self._conclude(now)

    @property
    def _failures(self) -> Dict[int, Value]:
        """Of the ranks that ended by themselves those that failed, in the order in which that was heard."""
        return {
            rank: {"consequence": False, **one}
            for rank, one in self._ended.items()
            if one["status"] not in (runs.COMPLETED, runs.STOPPED)
        }

    def _decide(self) -> None:
        """Who is the cause; the others end."""
        found = self._failures
        rank = next(
            (rank for rank, one in found.items() if not one["consequence"]), next(iter(found))
        )
        one = found[rank]
        self._cause = _cause(rank, one["status"], one.get("error"), one.get("code"))
        self._final = self._final or bool(one.get("expired"))
        self._end_others(None)

    def _end_others(self, grace: Optional[float]) -> None:
        self._stage, self._collect_until = "ending", None
        for rank in self._all:
            if rank not in self._ended:
                self._send(rank, {"do": "end", "grace": grace, "cause": self._cause})

    def _conclude(self, now: float) -> None:
        """Nobody has anything running any more."""
        again = self._attempt < self._policy.max_attempts and not self._final
        if self._cause is None or not again:
            self._finish(self._cause)
            return
        self._stage = "pausing"
        self._not_before = now + self._policy.delay_seconds
        self._broadcast({"do": "again", "cause": self._cause})

    def _finish(self, cause: Optional[Value]) -> None:
        self._stage = "over"
        self._release()
        self._broadcast({"do": "over", "cause": cause})

    def _report_wait(self, why: str, ranks: Set[int]) -> None:
        if why != self._why:
            self._why = why
            for rank in sorted(ranks):
                self._send(rank, {"do": "wait", "why": why})

    def _broadcast(self, value: Value) -> None:
        self._why = ""
        for rank in self._all:
            self._send(rank, value)

    def _send(self, rank: int, value: Value) -> None:
        self.outbox.append((rank, value))


def _cause(rank: int, status: str, error: Optional[str], code: Optional[int] = None) -> Value:
    return {"rank": rank, "status": status, "exit_code": code, "error": error}


def _difference_text(found: Sequence[str], wanted: Sequence[str]) -> str:
    """Ranks that go on from different checkpoints would train nonsense."""
    here, there = ", ".join(found) or "nothing", ", ".join(wanted) or "nothing"
    return f"it would begin with {here}, rank 0 with {there}: keep checkpoints where all nodes see them"


def _rank_names(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2``; of many the first ones."""
    first = ", ".join(str(rank) for rank in ranks[:8]) + (" \u2026" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {first}"
