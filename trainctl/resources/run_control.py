"""Asking nodes about runs that exist, and telling them what to do with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from trainctl.base.parallel import each
from trainctl.base.protocol import runs as protocol
from trainctl.base.protocol.code import READ_CODE, CodeRequest
from trainctl.base.protocol.method import RunRequest
from trainctl.base.protocol.spec import QueueOrder
from trainctl.errors import NodeError, UnknownOnNode
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.run import RankRecord, RunRecord
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.responses import OnEvent
from trainctl.resources.agents import Agents, node_named
from trainctl.resources.run_status import are_lost, with_partial_status, with_status

T = TypeVar("T")

STOP_GRACE_SECONDS = 30.0
"""How long a job may take to end by itself once it was asked to."""

QUERY_SECONDS = 60.0
"""How long a node that is only looked at may be silent."""

_AT_ONCE = 16
"""How many nodes are asked at the same time."""

RunReports = Mapping[str, protocol.RunReport | None]
"""Statuses by key."""


def runs_of(recorded: RecordedResource | None) -> tuple[RunRecord, ...]:
    """The runs of a recorded job, the newest last."""
    runs = recorded.outputs.get("runs", ()) if recorded else ()
    return tuple(RunRecord.from_json(run) for run in runs)


class ObservedRun(NamedTuple):
    """A run as its nodes tell it; with an ``error`` as it was last seen, but for the ranks whose nodes answered."""

    run: RunRecord
    error: NodeError | None


class RunControl:
    """Reaches the nodes of a run through the records of their clusters."""

    def __init__(
        self, agents: Agents, lookup: Callable[[Address], RecordedResource | None]
    ) -> None:
        self._agents = agents
        self._lookup = lookup

    def status(self, run: RunRecord) -> RunRecord:
        """The run's record as its nodes tell it now; LOST where a node knows nothing of a live run."""
        now, error = self.statuses([run])[run.key]
        if error is not None:
            raise error
        return now

    def statuses(self, runs: Sequence[RunRecord]) -> dict[str, ObservedRun]:
        """As ``status``, of many runs by their keys: each node is asked once. Why something can't be learned is told beside what can."""
        keys: dict[str, set[str]] = {}
        found: dict[str, ObservedRun] = {}
        for run in runs:
            for rank in run.ranks:
                keys.setdefault(rank.node, set()).add(run.key)
        answers = dict(zip(keys, each(self._ask_status, keys.items(), _AT_ONCE), strict=True))
        for run in runs:
            told = [answers[rank.node] for rank in run.ranks]
            failed = next((one for one in told if isinstance(one, NodeError)), None)
            mine = [None if isinstance(one, NodeError) else one.get(run.key) for one in told]
            reports = {
                rank.rank: answer
                for rank, one, answer in zip(run.ranks, told, mine, strict=True)
                if not isinstance(one, NodeError)
            }
            unanswered = {rank.rank for rank in run.ranks} - reports.keys()
            if failed is None or are_lost(unanswered, mine):
                found[run.key] = ObservedRun(with_status(run, mine), None)
            else:
                found[run.key] = ObservedRun(with_partial_status(run, reports), failed)
        return found

    def _ask_status(self, question: tuple[str, set[str]]) -> RunReports | NodeError:
        node_id, keys = question
        try:
            agent, node = self._find_node(node_id)
            request = protocol.StatusRequest(root=node.root, keys=sorted(keys))
            return agent.call(protocol.STATUS, request, timeout=QUERY_SECONDS)["runs"]
        except UnknownOnNode:
            return {}
        except NodeError as error:
            return error

    def set_priority(self, run: RunRecord, order: QueueOrder) -> None:
        """Tell a run that may be waiting its priority and slots."""

        def ask(agent: NodeAgent, node: Node) -> protocol.RunReport:
            return agent.call(
                protocol.SET_QUEUE_ORDER,
                protocol.SetQueueOrderRequest(root=node.root, key=run.key, **order),
            )

        self._each(run, ask)

    def set_secrets(self, run: RunRecord, values: Mapping[str, str] | None) -> RunRecord:
        """Begin anew a run on one node that waits for its secrets, None for those that the node keeps; its record then."""

        def ask(agent: NodeAgent, node: Node) -> protocol.RunReport:
            request = protocol.SetSecretsRequest(
                root=node.root, data=node.data, key=run.key, secrets=values
            )
            return agent.call(protocol.SET_SECRETS, request)

        return with_status(run, self._each(run, ask))

    def stop(
        self,
        run: RunRecord,
        grace_seconds: float = STOP_GRACE_SECONDS,
        on_event: OnEvent | None = None,
    ) -> RunRecord:
        """End the run: its processes are asked, and after the grace made to. Events: ``seconds, grace, processes``."""
        now, error = self.try_stop(run, grace_seconds, on_event)
        if error is not None:
            raise error
        return now

    def try_stop(
        self, run: RunRecord, grace_seconds: float, on_event: OnEvent | None = None
    ) -> ObservedRun:
        """As ``stop``; where some rank's node could not be asked, what became of the others."""

        def ask(agent: NodeAgent, node: Node) -> protocol.RunReport:
            request = protocol.StopRequest(root=node.root, key=run.key, grace_seconds=grace_seconds)
            return agent.call(protocol.STOP, request, on_event=on_event)

        answers = self._answers(run, ask)
        reports = {
            rank.rank: answer
            for rank, answer in zip(run.ranks, answers, strict=True)
            if not isinstance(answer, NodeError)
        }
        failed = next((one for one in answers if isinstance(one, NodeError)), None)
        if failed is None:
            return ObservedRun(with_status(run, [*reports.values()]), None)
        return ObservedRun(with_partial_status(run, reports), failed)

    def remove(self, run: RunRecord) -> None:
        """Remove what the run left on its nodes, but for its checkpoints."""

        def ask(agent: NodeAgent, node: Node) -> protocol.RemoveResponse:
            return agent.call(
                protocol.REMOVE, protocol.RunCacheRequest(root=node.root, key=run.key)
            )

        self._each(run, ask)

    def read_lines(
        self,
        run: RunRecord,
        rank: int,
        wanted: protocol.LogStreamQuery,
        on_bytes: Callable[[bytes], None],
    ) -> None:
        """Hand over one rank's log as frames."""
        agent, node = self.node_of_rank(run, rank)
        request = protocol.ReadLinesRequest(root=node.root, key=run.key, rank=rank, **wanted)
        agent.read(protocol.READ_LINES, request, on_bytes, QUERY_SECONDS)

    def previous_run(self, run: RunRecord) -> protocol.RunInputsResponse:
        """What the run's first node knows it was made of."""
        agent, node = self.node_of_rank(run, 0)
        return agent.call(
            protocol.GET_RUN_INPUTS, RunRequest(root=node.root, key=run.key), timeout=QUERY_SECONDS
        )

    def read_code(self, run: RunRecord, digest: str, on_bytes: Callable[[bytes], None]) -> None:
        """Hand over the archive of a code tree that the run's first node has."""
        agent, node = self.node_of_rank(run, 0)
        agent.read(READ_CODE, CodeRequest(root=node.root, digest=digest), on_bytes)

    def metrics(self, run: RunRecord, rank: int, since: float) -> tuple[str, list[dict[str, Any]]]:
        """The id of a rank's node, and the samples that it took after a time, the oldest first."""
        agent, node = self.node_of_rank(run, rank)
        request = protocol.MetricsRequest(root=node.root, key=run.key, since=since)
        return node.id, agent.call(protocol.METRICS, request, timeout=QUERY_SECONDS)["samples"]

    def _each(self, run: RunRecord, ask: Callable[[NodeAgent, Node], T]) -> Sequence[T | None]:
        """As ``_answers``; the first error is raised once all have answered."""
        answers = self._answers(run, ask)
        failed = next((answer for answer in answers if isinstance(answer, NodeError)), None)
        if failed is not None:
            raise failed
        return [answer for answer in answers if not isinstance(answer, NodeError)]

    def _answers(
        self, run: RunRecord, ask: Callable[[NodeAgent, Node], T]
    ) -> Sequence[T | NodeError | None]:
        """What each rank's node answers, all at once, so that none learns from another what it was about to be told; None of one
        that the state has no more.
        """

        def answer(rank: RankRecord) -> T | NodeError | None:
            try:
                place = self.node_of_rank(run, rank.rank)
            except UnknownOnNode:
                return None
            except NodeError as error:
                return error
            try:
                return ask(*place)
            except NodeError as error:
                return error

        return each(answer, run.ranks, _AT_ONCE)

    def node_of_rank(self, run: RunRecord, rank: int) -> tuple[NodeAgent, Node]:
        """The node of a rank, and the way to ask it. NodeError if there is no such rank or node."""
        node_id = next((one.node for one in run.ranks if one.rank == rank), None)
        if node_id is None:
            raise NodeError(
                f"run {run.id} has no rank {rank}",
                f"The run has {len(run.ranks)}, counted from 0.",
                code="run-not-found",
            )
        return self._find_node(node_id)

    def _find_node(self, node_id: str) -> tuple[NodeAgent, Node]:
        cluster = self._lookup(Address(Kind.CLUSTER, node_id.partition("/")[0]))
        node = node_named(cluster, node_id) if cluster else None
        if cluster is None:
            raise NodeError(f"node {node_id} is no longer in the state")
        if node is None:
            raise UnknownOnNode(f"{cluster.address} no longer has node {node_id}")
        return self._agents.ephemeral_agent(cluster.provider, node), node
