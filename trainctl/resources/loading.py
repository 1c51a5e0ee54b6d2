"""Choose the checkpoints that a run loads, and deliver them to those of its nodes that don't see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

from trainctl.apply.step import ApplyStep
from trainctl.base.checkpoints.ranking import newest_checkpoint
from trainctl.base.parallel import each
from trainctl.base.protocol.runs import StartRequest
from trainctl.base.protocol.spec import CheckpointLoad
from trainctl.base.protocol.wire import encode_rows
from trainctl.errors import NodeError
from trainctl.jobs.checkpoints import CheckpointAccess, loadable_runs, reference_of
from trainctl.model.run import RunRecord
from trainctl.resources.checkpoints import CheckpointClient, Row
from trainctl.resources.delivery import Delivery
from trainctl.resources.mirror.access import NodeFilesAccess
from trainctl.resources.mirror.node_server import NodeServer
from trainctl.resources.runs.launch import PlacedRank
from trainctl.resources.runs.run_control import RunControl

_AT_ONCE = 8
"""How many runs or nodes are queried at the same time."""


class _Chosen(NamedTuple):
    client: CheckpointClient
    prefix: str
    rows: Sequence[Row]
    reference: CheckpointLoad


class CheckpointLoader:
    """Adds to the requests that start a run what its ranks load; no earlier run of its job is live any more."""

    def __init__(
        self,
        step: ApplyStep,
        control: RunControl,
        access: CheckpointAccess,
        delivery: Delivery,
        started: Mapping[int, StartRequest],
    ) -> None:
        self._step = step
        self._control = control
        self._access = access
        self._delivery = delivery
        self._started = started

    def add_checkpoints(self, run: RunRecord, ranks: Sequence[PlacedRank]) -> RunRecord:
        """Choose the newest checkpoints of recorded runs, as plans do; return the run with their deliveries.

        Nodes look in their own store for checkpoints of runs that the new one follows, and of no recorded run.
        """
        followed = {follows["key"] for follows in self._started[0]["run"]["follows"]}
        for load in self._step.job_spec.runtime.loads:
            runs = list(loadable_runs(load, self._access.state()))
            reference = reference_of(load, runs, self._step.lookup)
            follows = followed.intersection(candidate.key for candidate in runs)
            chosen = None if follows else self._choose(runs, reference)
            if chosen is None:
                for rank in ranks:
                    self._started[rank.number]["run"]["load"].append(reference)
            else:
                run = self._add(run, ranks, chosen)
        return run

    def _choose(self, runs: Sequence[RunRecord], reference: CheckpointLoad) -> _Chosen | None:
        """Return the newest complete checkpoint, None without any."""

        def query(run: RunRecord) -> tuple[CheckpointClient, list[Row]]:
            client = CheckpointClient(self._control, self._access, run)
            if run.sync.get("state") != "COMPLETED":
                with suppress(NodeError):  # the node is unreachable, or the run is live
                    client.upload()
            known = [row for row in client.rows() if row["state"] == "complete"]
            return client, [row for row in known if reference["name"] in (None, row["name"])]

        found = dict(zip((run.checkpoint_prefix for run in runs), each(query, runs, _AT_ONCE), strict=True))  # fmt: skip
        newest = newest_checkpoint({prefix: rows for prefix, (_, rows) in found.items()})
        if newest is None:
            return None
        prefix, rows = newest
        job = reference["job"] or prefix.split("/")[1]
        exact: CheckpointLoad = {**reference, "job": job, "name": rows[0]["name"], "runs": [prefix]}
        return _Chosen(found[prefix][0], prefix, rows, exact)

    def _add(self, run: RunRecord, ranks: Sequence[PlacedRank], chosen: _Chosen) -> RunRecord:
        """Add a checkpoint to the requests; deliver the files of its ranks to nodes that don't see them."""
        client, rows = chosen.client, chosen.rows
        seen = {rank.number: {row["rank"] for row in rows} for rank in ranks}
        if not client.in_bucket:
            replies = each(lambda rank: client.on_node(rank.agent, rank.node), ranks, _AT_ONCE)
            for rank, complete in zip(ranks, replies, strict=True):
                seen[rank.number] = {
                    row["rank"] for row in rows if (row["rank"], row["name"]) in complete
                }
        for rank in (rank for rank in ranks if seen[rank.number]):
            request = self._started[rank.number]
            request["run"]["load"].append({**chosen.reference, "place": client.place})
            request["secrets"] = {**request["secrets"], **self._access.values(client.place)}
        for row in rows:
            lacking = [rank for rank in ranks if row["rank"] not in seen[rank.number]]
            run = self._deliver(run, lacking, chosen, row) if lacking else run
        return run

    def _deliver(
        self, run: RunRecord, ranks: Sequence[PlacedRank], chosen: _Chosen, row: Row
    ) -> RunRecord:
        """Deliver what one rank saved from its node to others, each byte once."""
        name = f"{chosen.prefix}/rank-{row['rank']}/{row['name']}"

        def on_event(event: Mapping[str, Any]) -> None:
            self._step.progress(f"verifying {name}", int(event["done"]), row["bytes"])

        agent, node, directory, listing = chosen.client.listing(row, on_event)
        request = {"root": node.root, "ports": node.ports, "directory": directory}
        register = self._delivery.register
        following = encode_rows([listing.rows()])
        server = NodeServer(agent, {**request, "listings": [listing.id]}, register, following)
        with closing(server):
            source = NodeFilesAccess(server, register)
            assignments = list({rank.node.id: rank.assignment for rank in ranks}.values())
            records = self._delivery.through(source).deliver(
                self._step, assignments, {name: listing}
            )
        for rank in ranks:
            place = {"url": f"file://{quote(source.trees[rank.node.id])}"}
            self._started[rank.number]["run"]["load"].append({**chosen.reference, "place": place})
        numbers = {rank.node.id: rank.number for rank in reversed(ranks)}
        delivered = [replace(record, rank=numbers[record.node]).to_json() for record in records]
        moved = sum(record.moved for record in records)
        return replace(
            run, delivered=run.delivered + moved, deliveries=(*run.deliveries, *delivered)
        )
