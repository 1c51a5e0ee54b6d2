"""Query and control existing runs through the agents of their nodes, and merge what these report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.parallel import each
from trainctl.base.protocol import INTERRUPTED
from trainctl.base.protocol import runs as protocol
from trainctl.base.protocol.method import RunRequest
from trainctl.base.protocol.runs import QueueOrder, RootCause, RunDetails, RunMoment, RunReport
from trainctl.errors import NodeError, UnknownOnNode
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.run import LIVE_FIRST, RankRecord, RunRecord, RunStatus
from trainctl.plugin_api.provider import Node, ResourceStatus
from trainctl.remote.agent import NodeAgent
from trainctl.remote.responses import OnEvent
from trainctl.resources.agents import Agents, node_named

if TYPE_CHECKING:
    from trainctl.resources.runs.batch_runs import BatchCluster

T = TypeVar("T")

STOP_GRACE_SECONDS = 30.0
"""Time between SIGTERM and SIGKILL of a job's processes."""

QUERY_SECONDS = 60.0
"""Timeout of requests that only query a node."""

_AT_ONCE = 64
"""How many nodes are queried at the same time."""

RunReports = Mapping[str, protocol.RunReport | None]
"""A node's reports of runs, by run key."""


def runs_of(recorded: RecordedResource | None) -> tuple[RunRecord, ...]:
    """Return the runs of a recorded job, the newest last."""
    runs = recorded.outputs.get("runs", ()) if recorded else ()
    return tuple(RunRecord.from_json(run) for run in runs)


class ObservedRun(NamedTuple):
    """A run as its nodes report it; with an ``error``, some ranks are as recorded."""

    run: RunRecord
    error: NodeError | None


class RunControl:
    """Calls the nodes of runs, which it finds in the records of their clusters."""

    def __init__(
        self, agents: Agents, lookup: Callable[[Address], RecordedResource | None]
    ) -> None:
        self._agents = agents
        self._lookup = lookup

    def status(self, run: RunRecord) -> RunRecord:
        """Query the run; LOST if a node does not know it. NodeError if unreachable."""
        observed, error = self.statuses([run])[run.key]
        if error is not None:
            raise error
        return observed

    def statuses(self, runs: Sequence[RunRecord]) -> dict[str, ObservedRun]:
        """Query runs, each node once; return them by key, with errors."""
        batched = {run.key: run for run in runs if self._batch_cluster(run) is not None}
        placed = [run for run in runs if run.key not in batched]
        keys: dict[str, set[str]] = {}
        for run in placed:
            for rank in run.ranks:
                keys.setdefault(rank.node, set()).add(run.key)

        def query(item: tuple[str, set[str]]) -> RunReports | NodeError:
            try:
                agent, node = self._find_node(item[0])
                request = protocol.StatusRequest(root=node.root, keys=sorted(item[1]))
                return agent.call(protocol.STATUS, request, timeout=QUERY_SECONDS)["runs"]
            except UnknownOnNode:
                return {}
            except NodeError as error:
                return error

        replies = dict(zip(keys, each(query, keys.items(), _AT_ONCE), strict=True))
        observed = {run.key: self._observed(run, replies) for run in placed}
        logins = dict.fromkeys(run.ranks[0].node for run in batched.values())
        batches = [
            [run for run in batched.values() if run.ranks[0].node == node] for node in logins
        ]
        for of_cluster in each(self._observe_batch, batches, _AT_ONCE):
            observed |= of_cluster
        return observed

    def _observed(
        self, run: RunRecord, replies: Mapping[str, RunReports | NodeError]
    ) -> ObservedRun:
        """Return a run as its nodes' replies report it."""
        of_ranks = [replies[rank.node] for rank in run.ranks]
        reports = [
            None if isinstance(reply, NodeError) else reply.get(run.key) for reply in of_ranks
        ]
        by_rank = {
            rank.rank: report
            for rank, reply, report in zip(run.ranks, of_ranks, reports, strict=True)
            if not isinstance(reply, NodeError)
        }
        error = _first_error(of_ranks)
        if error is None:
            return ObservedRun(with_status(run, reports), None)
        unreachable = {rank.rank: rank.node for rank in run.ranks if rank.rank not in by_rank}
        if not are_lost(unreachable.keys(), reports):
            return ObservedRun(with_partial_status(run, by_rank), error)
        lost = with_status(run, reports)
        (node_id,) = unreachable.values()
        cluster, node = self._cluster_and_node(node_id)
        if (
            cluster
            and node
            and node.details.get("notice")  # its platform takes machines back
            and self._agents.providers(cluster.provider).read(node) is ResourceStatus.MISSING
        ):
            lost = replace(lost, error=f"{INTERRUPTED}{lost.error}")
        return ObservedRun(lost, None)

    def _observe_batch(self, runs: Sequence[RunRecord]) -> dict[str, ObservedRun]:
        """Query runs of one batch system, and it, once."""
        batch = self._batch_cluster(runs[0])
        assert batch is not None  # noqa: S101 - see statuses
        reports = batch.reports({run.key: len(run.ranks) for run in runs})
        if isinstance(reports, NodeError):
            return {run.key: ObservedRun(run, reports) for run in runs}
        return {run.key: ObservedRun(with_status(run, reports[run.key]), None) for run in runs}

    def _batch_cluster(self, run: RunRecord) -> BatchCluster | None:
        from trainctl.resources.runs.batch_runs import BatchCluster

        name = run.ranks[0].node.partition("/")[0] if run.ranks else ""
        cluster = self._lookup(Address(Kind.CLUSTER, name)) if name else None
        return BatchCluster.of(self._agents, cluster) if cluster else None

    def set_queue_order(self, run: RunRecord, order: QueueOrder) -> None:
        """Set the priority and slots of a run that may be queued."""
        self._call_nodes(
            run,
            lambda agent, node: agent.call(
                protocol.SET_QUEUE_ORDER,
                protocol.SetQueueOrderRequest(root=node.root, key=run.key, **order),
            ),
        )

    def set_secrets(self, run: RunRecord, values: Mapping[str, str] | None) -> RunRecord:
        """Restart a run that waits for its secrets; None uses those stored on the node."""

        def send(agent: NodeAgent, node: Node) -> protocol.RunReport:
            request = protocol.SetSecretsRequest(
                root=node.root, data=node.data, key=run.key, secrets=values
            )
            return agent.call(protocol.SET_SECRETS, request)

        return with_status(run, self._call_nodes(run, send))

    def stop(
        self,
        run: RunRecord,
        grace_seconds: float = STOP_GRACE_SECONDS,
        on_event: OnEvent | None = None,
    ) -> RunRecord:
        """Stop the run's processes: SIGTERM, and SIGKILL after the grace time.

        Events: ``seconds, grace, processes``. NodeError if a node is unreachable.
        """
        stopped, error = self.try_stop(run, grace_seconds, on_event)
        if error is not None:
            raise error
        return stopped

    def try_stop(
        self, run: RunRecord, grace_seconds: float, on_event: OnEvent | None = None
    ) -> ObservedRun:
        """Stop the run; return an unreachable node's error instead of raising it."""

        def stop(agent: NodeAgent, node: Node) -> protocol.RunReport:
            request = protocol.StopRequest(root=node.root, key=run.key, grace_seconds=grace_seconds)
            return agent.call(protocol.STOP, request, on_event=on_event)

        if (batch := self._batch_cluster(run)) is not None:
            try:
                batch.stop(run, grace_seconds, on_event)
            except NodeError as failure:
                return ObservedRun(run, failure)
            return self.statuses([run])[run.key]
        replies = self._replies(run, stop)
        reports = {
            rank.rank: reply
            for rank, reply in zip(run.ranks, replies, strict=True)
            if not isinstance(reply, NodeError)
        }
        error = _first_error(replies)
        if error is None:
            return ObservedRun(with_status(run, [*reports.values()]), None)
        return ObservedRun(with_partial_status(run, reports), error)

    def remove(self, run: RunRecord) -> None:
        """Delete the run's files on its nodes, except checkpoints."""
        self._call_nodes(
            run,
            lambda agent, node: agent.call(
                protocol.REMOVE, protocol.RunCacheRequest(root=node.root, key=run.key)
            ),
        )

    def read_lines(
        self,
        run: RunRecord,
        rank: int,
        query: protocol.LogStreamQuery,
        on_bytes: Callable[[bytes], None],
    ) -> None:
        """Pass one rank's log to a callback as frames."""
        agent, node = self.node_of_rank(run, rank)
        request = protocol.ReadLinesRequest(root=node.root, key=run.key, rank=rank, **query)
        agent.read(protocol.READ_LINES, request, on_bytes, QUERY_SECONDS)

    def previous_run(self, run: RunRecord) -> protocol.RunInputsResponse:
        """Return the run's inputs, as stored on its first node."""
        agent, node = self.node_of_rank(run, 0)
        request = RunRequest(root=node.root, key=run.key)
        return agent.call(protocol.GET_RUN_INPUTS, request, timeout=QUERY_SECONDS)

    def find_run(self, node_id: str, run_id: str) -> protocol.FoundRun:
        """Return a run by its ID, as stored on its node; UnknownOnNode if it isn't there."""
        agent, node = self._find_node(node_id)
        request = protocol.FindRunRequest(root=node.root, id=run_id)
        found = agent.call(protocol.FIND_RUN, request, timeout=QUERY_SECONDS)["run"]
        if found is None:
            raise UnknownOnNode(
                f"run {run_id} is not on {node_id}",
                "Name the node and the ID of one of its runs, as shown by trainctl status.",
                code="run-not-found",
            )
        return found

    def read_code(self, run: RunRecord, digest: str, on_bytes: Callable[[bytes], None]) -> None:
        """Pass the archive of a code tree on the run's first node to a callback."""
        from trainctl.base.protocol.host import READ_CODE, CodeRequest

        agent, node = self.node_of_rank(run, 0)
        agent.read(READ_CODE, CodeRequest(root=node.root, digest=digest), on_bytes)

    def extend_session(self, run: RunRecord, seconds: float) -> float | None:
        """Extend the session of all ranks; the first end in Unix seconds, None while the commands run."""

        def extend(agent: NodeAgent, node: Node) -> protocol.ExtendSessionResponse:
            request = protocol.ExtendSessionRequest(root=node.root, key=run.key, seconds=seconds)
            return agent.call(protocol.EXTEND_SESSION, request, timeout=QUERY_SECONDS)

        replies = self._call_nodes(run, extend)
        return min(
            (until for reply in replies if reply and (until := reply["until"])), default=None
        )

    def interactive_agent(self, run: RunRecord, rank: int) -> tuple[NodeAgent, Node]:
        """Return a rank's node and an agent that installs its program; NodeError for live runs of batch systems."""
        _, node = self.node_of_rank(run, rank)
        cluster = self._lookup(Address(Kind.CLUSTER, node.cluster))
        assert cluster is not None  # noqa: S101 - it has the node
        if run.status.live and self._batch_cluster(run) is not None:
            raise NodeError(
                f"run {run.id} can't be entered: a batch system runs it",
                f"Use its tools, for example srun --overlap --pty, from {node.id}.",
                code="not-interactive",
            )
        return self._agents.of(cluster.provider, node), node

    def metrics(self, run: RunRecord, rank: int, since: float) -> tuple[str, list[dict[str, Any]]]:
        """Return the id of a rank's node, and its samples after a time, oldest first."""
        agent, node = self.node_of_rank(run, rank)
        request = protocol.MetricsRequest(root=node.root, key=run.key, since=since)
        return node.id, agent.call(protocol.METRICS, request, timeout=QUERY_SECONDS)["samples"]

    def _call_nodes(
        self, run: RunRecord, call: Callable[[NodeAgent, Node], T]
    ) -> Sequence[T | None]:
        """Call all ranks' nodes; raise the first error when all have replied."""
        replies = self._replies(run, call)
        error = _first_error(replies)
        if error is not None:
            raise error
        return [reply for reply in replies if not isinstance(reply, NodeError)]

    def _replies(
        self, run: RunRecord, call: Callable[[NodeAgent, Node], T]
    ) -> Sequence[T | NodeError | None]:
        """Call all ranks' nodes in parallel; None for a node not in the state."""

        def query(rank: RankRecord) -> T | NodeError | None:
            try:
                try:
                    agent, node = self.node_of_rank(run, rank.rank)
                except UnknownOnNode:
                    return None
                return call(agent, node)
            except NodeError as error:
                return error

        return each(query, run.ranks, _AT_ONCE)

    def node_of_rank(self, run: RunRecord, rank: int) -> tuple[NodeAgent, Node]:
        """Return a rank's node and its agent; NodeError if there is no such rank, UnknownOnNode for a removed node."""
        node_id = next((record.node for record in run.ranks if record.rank == rank), None)
        if node_id is None:
            raise NodeError(
                f"run {run.id} has no rank {rank}",
                f"The run has {len(run.ranks)}, counted from 0.",
                code="run-not-found",
            )
        agent, node = self._find_node(node_id)
        if rank and self._batch_cluster(run) is not None:
            from trainctl.resources.runs.batch_runs import rank_node

            node = rank_node(node, rank)
        return agent, node

    def _cluster_and_node(self, node_id: str) -> tuple[RecordedResource | None, Node | None]:
        cluster = self._lookup(Address(Kind.CLUSTER, node_id.partition("/")[0]))
        return cluster, node_named(cluster, node_id) if cluster else None

    def _find_node(self, node_id: str) -> tuple[NodeAgent, Node]:
        cluster, node = self._cluster_and_node(node_id)
        if cluster is None or node is None:
            raise UnknownOnNode(f"node {node_id} is no longer in the state")
        return self._agents.of(cluster.provider, node, ephemeral=True), node


def _first_error(replies: Iterable[object]) -> NodeError | None:
    return next((reply for reply in replies if isinstance(reply, NodeError)), None)


DetailsT = TypeVar("DetailsT", RunDetails, RunMoment)


def with_status(run: RunRecord, reports: Sequence[RunReport | None]) -> RunRecord:
    """Return the run with its ranks' reports; None if a node has no such run."""
    ranks = tuple(_rank(rank, report) for rank, report in zip(run.ranks, reports, strict=True))
    known = [report for report in reports if report]
    root_cause = next((report["root_cause"] for report in known if report.get("root_cause")), None)
    started, ended = _times("started_at", reports), _times("ended_at", reports)
    status = min((rank.status for rank in ranks), key=LIVE_FIRST.index, default=run.status)
    # The other ranks would wait for a lost rank forever.
    hopeless = not started and any(rank.status is RunStatus.LOST for rank in ranks)
    # Ranks that lost their connections, as in an outage, were not stopped by a user.
    disconnected = (
        status is RunStatus.STOPPED and root_cause and root_cause["status"] == RunStatus.LOST
    )
    errors = [report.get("error") for report in known] + [
        root_cause["error"] if root_cause else None
    ]
    interrupted = status is RunStatus.STOPPED and any(
        INTERRUPTED in (text or "") for text in errors
    )
    if hopeless or ((disconnected or interrupted) and not run.stop_requested):
        status = RunStatus.LOST
    elif (
        run.stop_requested
        and status is RunStatus.LOST
        and any(rank.status is RunStatus.STOPPED for rank in ranks)
    ):
        status = RunStatus.STOPPED  # the lost ranks were to be stopped as well
    was_stopped = status is RunStatus.STOPPED and (
        run.stop_requested or (root_cause is not None and root_cause["status"] == RunStatus.STOPPED)
    )
    if was_stopped:
        ranks = tuple(map(_ended_together, ranks, reports))
    phases = dict(run.phases)
    recorded_error = None if known else run.error  # a reported run replaces the recorded error
    over = not status.live and bool(ended) and len(ended) == len(ranks)
    if over and started:
        phases["running"] = round(max(0.0, ended[0] - started[0]), 3)  # clocks may be set back
    return replace(
        run,
        ranks=ranks,
        status=status,
        started_at=started[0] if started else run.started_at,
        ended_at=ended[0] if over else run.ended_at,
        error=None if was_stopped else _run_error(known, root_cause, len(ranks)) or recorded_error,
        blamed=root_cause["rank"] if root_cause else None,
        phases=phases,
        reported=cast(
            RunDetails,
            {**{k: v for k, v in run.reported.items() if k in _LASTING}, **_details(known)},
        ),
        now=_first_of(RunMoment, known),
    )


_LASTING = frozenset({"retries", "evaluations", "loaded", "sync", "results"})
"""Details that stay recorded if later reports lack them, for example of a run that its node no longer has."""


def _details(known: Sequence[RunReport]) -> RunDetails:
    details = _first_of(RunDetails, known)
    if retries := max((report.get("retries") or 0 for report in known), default=0):
        details["retries"] = retries
    if uploads := [report["sync"] for report in known if report.get("sync")]:
        # that of an unfinished upload, preferably with an error
        details["sync"] = max(
            uploads, key=lambda upload: (upload["state"] != "COMPLETED", bool(upload.get("error")))
        )
    return details


def _first_of(kind: type[DetailsT], known: Sequence[RunReport]) -> DetailsT:
    """Return the keys of this type, each from the first report that has a value."""
    values: dict[str, Any] = {}
    for report in map(dict, known):
        for name in kind.__annotations__.keys() - values.keys():
            if report.get(name):
                values[name] = report[name]
    return cast(DetailsT, dict(sorted(values.items())))


def _ended_together(rank: RankRecord, report: RunReport | None) -> RankRecord:
    """Correct the error of a rank in a stopped run that considers another rank lost."""
    root_cause = report.get("root_cause") if report else None
    if rank.error is None or not root_cause or root_cause["status"] != RunStatus.LOST:
        return rank
    return replace(rank, error=f"ended with rank {root_cause['rank']}")


def with_partial_status(run: RunRecord, reports: Mapping[int, RunReport | None]) -> RunRecord:
    """Return the run with some ranks' reports; the run's status stays."""
    return replace(
        run,
        ranks=tuple(
            _rank(rank, reports[rank.rank]) if rank.rank in reports else rank for rank in run.ranks
        ),
    )


def _times(
    name: Literal["started_at", "ended_at"], reports: Sequence[RunReport | None]
) -> list[float]:
    """Return the reported times by rank; the first counts, as clocks differ."""
    return [time for report in reports if report and (time := report.get(name))]


def are_lost(unreachable: Collection[int], reports: Sequence[RunReport | None]) -> bool:
    """Whether an unreachable rank is lost: all others have ended, and one blames it."""
    known = [report for report in reports if report]
    blamed = {root_cause["rank"] for report in known if (root_cause := report.get("root_cause"))}
    ended = all(not RunStatus(report["status"]).live for report in known)
    return bool(known) and ended and len(unreachable) == 1 and bool(blamed & set(unreachable))


def _run_error(known: Sequence[RunReport], root_cause: RootCause | None, ranks: int) -> str | None:
    """Return the error of the root cause, with its rank in a multi-rank run."""
    if root_cause is None or not root_cause["error"]:
        return next((report["error"] for report in known if report.get("error")), None)
    error = root_cause["error"]
    if ranks == 1 or error.startswith("rank "):
        return error
    if root_cause["status"] == RunStatus.LOST:
        return f"rank {root_cause['rank']} {error}"
    return f"rank {root_cause['rank']}: {error}"


def _rank(rank: RankRecord, report: RunReport | None) -> RankRecord:
    if report is None:
        return replace(rank, status=RunStatus.LOST if rank.status.live else rank.status)
    status = RunStatus(report["status"])
    if status is RunStatus.CREATED and not report["supervised"]:
        status = RunStatus.LOST  # its supervisor is dead
    root_cause = report.get("root_cause")
    error = report.get("error") if root_cause and root_cause["rank"] != rank.rank else None
    return replace(
        rank,
        status=status,
        exit_code=report.get("exit_code"),
        error=error,
        host=report.get("host"),
        gpus=len(report.get("gpus") or ()) or rank.gpus,
    )
