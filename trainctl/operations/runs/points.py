"""Points that runs reported: read from nodes, and kept next to the state once a run has ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.parallel import each
from trainctl.base.points import RunPoints, points_json, update_points
from trainctl.base.protocol import runs as protocol
from trainctl.errors import NodeError, TrainctlError
from trainctl.model.run import RunRecord, RunStatus
from trainctl.operations.records import POINTS, SealedRecords
from trainctl.operations.runs.lookup import JobRun, run_control
from trainctl.operations.workspace import Workspace
from trainctl.remote.agent import NodeAgent
from trainctl.resources.checkpoints import CheckpointClient
from trainctl.resources.runs.run_control import QUERY_SECONDS

_NODES_AT_ONCE = 64
_AT_ONCE = 16
"""How many runs' points are read from the state or a checkpoint store at the same time."""


@dataclass(slots=True)
class ReportedPoints:
    """Points of a run, of the first rank that has any, and why newer ones are unknown.

    ``is_final``: no points are added any more.
    """

    points: RunPoints = field(default_factory=dict)
    rank: int | None = None
    problem: str = ""
    is_final: bool = False


def read_points(
    workspace: Workspace,
    runs: Sequence[JobRun],
    keys: Collection[str] | None = None,
    known: Mapping[str, ReportedPoints] | None = None,
) -> dict[str, ReportedPoints]:
    """Return the points of runs by run key, at least of these keys, by default of all; each node is called once.

    ``known``: what an earlier call with these keys returned; only newer points are requested, and added to it. Points of
    an ended run are kept next to the state, where they outlive its nodes.
    """
    found = {run.record.key: (known or {}).get(run.record.key, ReportedPoints()) for run in runs}
    wanted = [run for run in runs if not found[run.record.key].is_final and _may_have(run.record)]
    reader = _PointReader(workspace, found)
    _each(reader.read_kept, [run for run in wanted if not run.record.status.live])
    missing = [run for run in wanted if not found[run.record.key].is_final]
    ended = [run for run in missing if not run.record.status.live]
    reader.read_nodes(missing, None if ended else keys)
    _each(reader.keep, ended)
    _each(reader.read_uploaded, [run for run in missing if not found[run.record.key].points])
    return found


def _may_have(run: RunRecord) -> bool:
    """Whether the run may have reported points; that of a lost run is unknown."""
    is_known = run.status.live or run.status is RunStatus.LOST
    return run.started_at is not None and (is_known or bool(run.reported.get("results")))


class _PointReader:
    """Reads the points of runs from all places; what can't be read now is left to the next command."""

    def __init__(self, workspace: Workspace, found: Mapping[str, ReportedPoints]) -> None:
        self._workspace, self._found = workspace, found

    @cached_property
    def _records(self) -> SealedRecords:
        return SealedRecords(self._workspace)

    def read_kept(self, run: JobRun) -> None:
        """Read those next to the state."""
        if data := self._records.get(f"{POINTS}/{run.record.key}.json"):
            update_points(self._found[run.record.key].points, json.loads(data))
            self._found[run.record.key].is_final = True

    def read_nodes(self, runs: Sequence[JobRun], keys: Collection[str] | None) -> None:
        """Read those that nodes have; each node is called once."""
        control = run_control(self._workspace)
        calls: dict[tuple[str, str], tuple[NodeAgent, dict[str, int]]] = {}
        for run in runs:
            reported = self._found[run.record.key]
            for rank in (rank.rank for rank in run.record.ranks):
                if reported.rank in (None, rank):
                    try:
                        agent, node = control.node_of_rank(run.record, rank)
                    except NodeError as error:
                        reported.problem = error.summary
                    else:
                        call = calls.setdefault((node.id, node.root), (agent, {}))
                        call[1][run.record.key] = rank

        def query(key: tuple[str, str]) -> list[tuple[int, str, Mapping[str, Any] | NodeError]]:
            agent, ranks = calls[key]
            known = {
                run: {name: of.position for name, of in self._found[run].points.items()}
                for run in ranks
            }
            wanted = keys if keys is None else sorted(keys)
            request = protocol.PointsRequest(root=key[1], runs=known, keys=wanted)
            try:
                replies = agent.call(protocol.POINTS, request, timeout=QUERY_SECONDS)["runs"]
            except NodeError as error:
                return [(rank, run, error) for run, rank in ranks.items()]
            return [(rank, run, replies[run]) for run, rank in ranks.items()]

        replies = chain.from_iterable(each(query, calls, _NODES_AT_ONCE))
        for rank, run_key, reply in sorted(replies, key=itemgetter(0)):
            self._take(self._found[run_key], rank, reply)

    def _take(
        self, reported: ReportedPoints, rank: int, reply: Mapping[str, Any] | NodeError
    ) -> None:
        """Add the points of a rank, unless a rank before it has some."""
        if reported.rank in (None, rank):
            if isinstance(reply, NodeError):
                reported.problem = reply.summary
            elif reply:
                reported.rank, reported.problem = rank, ""
                try:
                    update_points(reported.points, reply)
                except ValueError as error:
                    reported.problem = str(error)

    def read_uploaded(self, run: JobRun) -> None:
        """Read those that were uploaded with checkpoints."""
        control = run_control(self._workspace, run.state)
        client = CheckpointClient(control, self._workspace.checkpoints, run.record)
        if data := next(
            filter(None, (client.points(rank.rank) for rank in run.record.ranks)), None
        ):
            update_points(self._found[run.record.key].points, json.loads(data))

    def keep(self, run: JobRun) -> None:
        """Store what nodes have of an ended run next to the state, unless the workspace is read-only."""
        settings, reported = self._workspace.settings, self._found[run.record.key]
        if reported.points and not reported.problem and not settings.read_only:
            points = {settings.redactor.redact(key): of for key, of in reported.points.items()}
            data = json.dumps(points_json(points)).encode()
            self._records.put(f"{POINTS}/{run.record.key}.json", data)
            reported.is_final = True


def _each(act: Callable[[JobRun], None], runs: Sequence[JobRun]) -> None:
    def attempt(run: JobRun) -> None:
        with suppress(TrainctlError, ValueError):
            act(run)

    each(attempt, runs, _AT_ONCE)
