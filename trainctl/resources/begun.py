"""Runs that nobody has recorded yet: what the nodes know, by their keys, of what attempts have begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from trainctl.apply.step import Lookup
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.errors import NodeError
from trainctl.ledger.state import Intent, State
from trainctl.model.address import Address, Kind
from trainctl.model.job_spec import JobSpec
from trainctl.model.run import RankRecord, RunRecord, RunStatus, run_id
from trainctl.resources.agents import Agents, nodes_of
from trainctl.resources.run_control import LOOK_SECONDS, Answer
from trainctl.resources.runs import with_status
from trainctl.spi.provider import Node

_AT_ONCE = 16
_NEW_RUN = frozenset({"create", "replace"})

Place = Callable[[Address, str, RunRecord], Mapping[str, Any]]
"""Where the checkpoints of a run of a job and a project are kept."""


class Begun(NamedTuple):
    """An attempt and its run, None where no node that answers knows of it; and why others could not be asked."""

    attempt: Intent
    run: RunRecord | None
    silent: NodeError | None

    @property
    def counts(self) -> bool:
        """Whether its run goes on, or did something before it ended."""
        return self.run is not None and (self.run.status.live or self.run.started_at is not None)


def attempts_of(state: State) -> list[Intent]:
    """The attempts at a run whose end nobody recorded, of each job the oldest first."""
    jobs = sorted({*state.unfinished, *state.open_intents})
    return [one for job in jobs for one in reversed(state.attempts(job)) if starts_run(one)]


def starts_run(attempt: Intent) -> bool:
    """Whether it is an attempt at a new run of a job."""
    return attempt.address.kind is Kind.JOB and attempt.action in _NEW_RUN


def begun(
    agents: Agents, lookup: Lookup, attempts: Iterable[Intent], place: Place
) -> tuple[Begun, ...]:
    """What attempts have begun, as their nodes tell it now; each node is asked once."""
    wanted: dict[Address, list[Intent]] = {}
    for one in attempts:
        wanted.setdefault(_cluster(one), []).append(one)
    found: list[Begun] = []
    for address, ones in wanted.items():
        cluster = lookup(address)
        nodes = nodes_of(cluster) if cluster else ()
        provider = cluster.provider if cluster else ""
        keys = sorted({one.key for one in ones})
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="begun") as pool:
            told = list(pool.map(lambda node: _ask(agents, provider, node, keys), nodes))  # noqa: B023 (ends with the loop's turn)
        silent = next((one for one in told if isinstance(one, NodeError)), None)
        heard = {
            node.id: one
            for node, one in zip(nodes, told, strict=True)
            if not isinstance(one, NodeError)
        }
        found += [Begun(one, _run(one, heard, place), silent) for one in ones]
    return tuple(found)


def _cluster(attempt: Intent) -> Address:
    return Address(Kind.CLUSTER, str(attempt.inputs.get("cluster")))


def _ask(agents: Agents, provider: str, node: Node, keys: Sequence[str]) -> Answer | NodeError:
    request = StatusRequest(root=node.root, keys=[*keys])
    try:
        return agents.to_look(provider, node).call(STATUS, request, timeout=LOOK_SECONDS)["runs"]
    except NodeError as error:
        return error


def _run(attempt: Intent, heard: Mapping[str, Answer], place: Place) -> RunRecord | None:
    """The run as those of its ranks tell it that were made."""
    told = {node: runs.get(attempt.key) for node, runs in heard.items()}
    answers = {node: answer for node, answer in told.items() if answer}
    if not answers:
        return None
    by_rank = sorted(answers.items(), key=lambda one: one[1]["rank"])
    first = by_rank[0][1]
    job = JobSpec.from_attributes(attempt.attributes)
    run = RunRecord(
        run_id(attempt.key),
        first["number"],
        attempt.key,
        first["generation"],
        ranks=tuple(
            RankRecord(answer["rank"], node, RunStatus.CREATED) for node, answer in by_rank
        ),
        created_at=attempt.time,
        code=job.code.digest,
    )
    run = with_status(run, [answer for _, answer in by_rank])
    return replace(run, store=place(attempt.address, job.project, run))
