"""Points that runs reported: read from nodes, and kept next to the state once a run has ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
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
    """Return the points of runs by run key, of some keys or all; each node is called once.

    ``known``: what an earlier call with these keys returned; only newer points are requested, and added to it. Points of
    an ended run are kept next to the state, where they outlive its nodes.
    """
    found = {run.record.key: (known or {}).get(run.record.key, ReportedPoints()) for run in runs}
    wanted = [run for run in runs if not found[run.record.key].is_final and _may_have(run.record)]
    reader = _PointReader(workspace, found)
    reader.read_kept([run for run in wanted if not run.record.status.live])
    missing = [run for run in wanted if not found[run.record.key].is_final]
    live = [run for run in missing if run.record.status.live]
    ended = [run for run in missing if not run.record.status.live]
    reader.read_nodes(live, keys)
    reader.read_nodes(ended, None)
    reader.keep(ended)
    reader.read_uploaded([run for run in missing if not found[run.record.key].points])
    if keys is not None:
        for reported in found.values():
            for key in reported.points.keys() - {*keys}:
                del reported.points[key]
    return found


def keep_points(workspace: Workspace, runs: Iterable[JobRun]) -> None:
    """Keep the points of those runs that have ended and reported any."""
    ended = [
        run for run in runs if not run.record.status.live and run.record.reported.get("results")
    ]
    if ended:
        with suppress(TrainctlError):
            read_points(workspace, ended)


def _may_have(run: RunRecord) -> bool:
    """Whether the run may have reported points; that of a lost run is unknown."""
    is_known = run.status.live or run.status is RunStatus.LOST
    return run.started_at is not None and (is_known or bool(run.reported.get("results")))


def _kept_key(run: RunRecord) -> str:
    return f"{POINTS}/{run.key}.json"


_RankCall = tuple[NodeAgent, str, dict[str, int]]
"""An agent, the root directory of its node program, and ranks by key of their runs."""


class _PointReader:
    """Reads the points of runs from all places; what can't be read now is left to the next command."""

    def __init__(self, workspace: Workspace, found: Mapping[str, ReportedPoints]) -> None:
        self._workspace, self._found = workspace, found
        self._records: SealedRecords | None = None

    def read_kept(self, runs: Sequence[JobRun]) -> None:
        """Read those next to the state."""
        with suppress(TrainctlError):  # of a plugin, which has none
            self._records = SealedRecords(self._workspace) if runs else None

        def read(run: JobRun) -> None:
            if self._records and (data := self._records.get(_kept_key(run.record))):
                self._add(run, data)
                self._found[run.record.key].is_final = True

        _each(read, runs)

    def read_nodes(self, runs: Sequence[JobRun], keys: Collection[str] | None) -> None:
        """Read those that nodes have; each node is called once."""
        control = run_control(self._workspace)
        calls: dict[tuple[str, str], _RankCall] = {}
        for run in runs:
            reported = self._found[run.record.key]
            for rank in (rank.rank for rank in run.record.ranks):
                if reported.rank in (None, rank):
                    try:
                        agent, node = control.node_of_rank(run.record, rank)
                    except NodeError as error:
                        reported.problem = error.summary
                    else:
                        call = calls.setdefault((node.id, node.root), (agent, node.root, {}))
                        call[2][run.record.key] = rank

        def query(call: _RankCall) -> list[tuple[int, str, Mapping[str, Any] | NodeError]]:
            agent, root, ranks = call
            known = {
                run: {key: points.position for key, points in self._found[run].points.items()}
                for run in ranks
            }
            wanted = keys if keys is None else sorted(keys)
            request = protocol.PointsRequest(root=root, runs=known, keys=wanted)
            try:
                replies = agent.call(protocol.POINTS, request, timeout=QUERY_SECONDS)["runs"]
            except NodeError as error:
                return [(rank, run, error) for run, rank in ranks.items()]
            return [(rank, run, replies[run]) for run, rank in ranks.items()]

        replies = chain.from_iterable(each(query, calls.values(), _NODES_AT_ONCE))
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

    def read_uploaded(self, runs: Sequence[JobRun]) -> None:
        """Read those that were uploaded with checkpoints."""
        workspace = self._workspace

        def read(run: JobRun) -> None:
            control = run_control(workspace, run.state)
            client = CheckpointClient(control, workspace.checkpoints, run.record)
            data = next(filter(None, (client.points(rank.rank) for rank in run.record.ranks)), None)
            self._add(run, data)

        _each(read, runs)

    def keep(self, runs: Sequence[JobRun]) -> None:
        """Store what nodes have of ended runs next to the state, unless the workspace is read-only."""
        if self._workspace.settings.read_only:
            return
        redact = self._workspace.settings.redactor.redact

        def put(run: JobRun) -> None:
            reported = self._found[run.record.key]
            if reported.points and not reported.problem and self._records:
                points = {redact(key): of_key for key, of_key in reported.points.items()}
                text = json.dumps(points_json(points))
                self._records.put(_kept_key(run.record), text.encode())
                reported.is_final = True

        _each(put, runs)

    def _add(self, run: JobRun, data: bytes | None) -> None:
        if data:
            update_points(self._found[run.record.key].points, json.loads(data))


def _each(act: Callable[[JobRun], None], runs: Sequence[JobRun]) -> None:
    def attempt(run: JobRun) -> None:
        with suppress(TrainctlError, ValueError):
            act(run)

    each(attempt, runs, _AT_ONCE)
