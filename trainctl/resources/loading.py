"""Choose the checkpoints that a run loads, and deliver them to those of its nodes that don't see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from urllib.parse import quote

from trainctl.apply.step import ApplyStep, DeferredStep
from trainctl.base.checkpoints.layout import newest_checkpoint
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.parallel import each
from trainctl.base.protocol.runs import CheckpointLoad, StartRequest
from trainctl.base.protocol.wire import encode_rows
from trainctl.errors import InsufficientSpace, TrainctlError
from trainctl.inputs.checkpoints import CheckpointAccess, loadable_runs, reference_of
from trainctl.model.delivery import DeliveryRecord
from trainctl.model.run import RunRecord
from trainctl.model.specs.runtime import CheckpointSelector
from trainctl.resources.checkpoints import CheckpointClient, Row
from trainctl.resources.delivery import Delivery, PlacedRank
from trainctl.resources.mirror_access import MirrorAccess, NodeFilesAccess, NodeServer
from trainctl.resources.runs.run_control import RunControl

_AT_ONCE = 8
"""How many runs or nodes are queried at the same time."""
_Ranks = Sequence[tuple[PlacedRank, StartRequest]]


@dataclass(frozen=True, slots=True)
class CheckpointLoader:
    """Adds what its ranks load to the requests that start a run; no earlier run of its job is live any more."""

    step: ApplyStep
    control: RunControl
    access: CheckpointAccess
    delivery: Callable[[MirrorAccess], Delivery]
    register: Callable[[str], str]

    def add_checkpoints(self, run: RunRecord, ranks: _Ranks) -> RunRecord:
        """Choose the newest checkpoints of recorded runs, as plans do; return the run with their deliveries.

        Nodes look in their own store for checkpoints of runs that the new one follows, and of no recorded run.
        """
        followed = {follows["key"] for _, request in ranks for follows in request["run"]["follows"]}
        chosen = dict[tuple[str, str], tuple[CheckpointLoad, CheckpointClient, Sequence[Row]]]()
        for load in self.step.job_spec.runtime.loads:
            runs = list(loadable_runs(load, self.access.state()))
            reference = reference_of(load, runs, self.step.lookup)
            follows = any(candidate.key in followed for candidate in runs)
            newest = None if follows else self._choose(runs, load)
            if newest is not None:
                client, rows = newest
                chosen[client.prefix, rows[0]["name"]] = reference, client, rows
            for _, request in ranks if newest is None else ():
                request["run"]["load"].append(reference)
        records = [record for added in chosen.values() for record in self._add(ranks, *added)]
        return replace(
            run,
            delivered=run.delivered + sum(record.moved for record in records),
            deliveries=(*run.deliveries, *(record.to_json() for record in records)),
        )

    def _choose(
        self, runs: Sequence[RunRecord], load: CheckpointSelector
    ) -> tuple[CheckpointClient, Sequence[Row]] | None:
        """Return the newest complete checkpoint of the runs that is meant."""
        clients = [CheckpointClient(self.control, self.access, run) for run in runs]

        def query(client: CheckpointClient) -> list[Row]:
            if client.run.reported.get("sync", {}).get("state") != "COMPLETED":
                with suppress(TrainctlError):  # a node or credential is gone, or it is live
                    client.upload()
            states = ("complete", "unfinished")  # one unfinished rank rules out its checkpoint
            rows = [row for row in client.rows() if row["state"] in states]
            return [row for row in rows if load.name in (None, row["name"])]

        found = dict(enumerate(each(query, clients, _AT_ONCE)))
        newest = newest_checkpoint(found, force=load.force)
        return newest and (clients[newest[0]], newest[1])

    def _add(
        self,
        ranks: _Ranks,
        reference: CheckpointLoad,
        client: CheckpointClient,
        rows: Sequence[Row],
    ) -> list[DeliveryRecord]:
        """Add a checkpoint to the requests; deliver what its ranks saved to nodes that don't see it."""
        name = rows[0]["name"]
        exact = CheckpointLoad(**{**reference, "name": name, "runs": [client.prefix]})
        exact["job"] = reference["job"] or client.prefix.split("/")[1]
        secrets = self.access.values(client.place)

        def query(rank: PlacedRank) -> set[int]:
            complete = rows if client.in_bucket else client.query(rank.agent, rank.node)["complete"]
            return {row["rank"] for row in complete if row["name"] == name}

        seen = each(query, [rank for rank, _ in ranks], _AT_ONCE)
        for (_, request), saved_by in zip(ranks, seen, strict=True):
            if saved_by:
                request["run"]["load"].append({**exact, "place": client.place})
                request["secrets"] = {**request["secrets"], **secrets}

        def deliver(row: Row) -> list[DeliveryRecord]:
            pairs = zip(ranks, seen, strict=True)
            lacking = [pair for pair, saved_by in pairs if row["rank"] not in saved_by]
            return self._deliver(lacking, exact, client, row) if lacking else []

        return [record for records in each(deliver, rows, _AT_ONCE) for record in records]

    def _deliver(
        self, ranks: _Ranks, exact: CheckpointLoad, client: CheckpointClient, row: Row
    ) -> list[DeliveryRecord]:
        """Deliver what one rank saved from its node to others, each byte once."""
        name = f"{client.prefix}/rank-{row['rank']}/{row['name']}"
        agent, node, directory, listing = client.listing(
            row, lambda sent: self.step.progress(f"verifying {name}", sent["done"], sent["total"])
        )
        listings = {"listings": [listing.id], "directory": directory}
        request = {"root": node.root, "ports": node.ports, **listings}
        rows = encode_rows([listing.rows()])
        nodes = {rank.node.id: rank for rank, _ in reversed(ranks)}
        with closing(NodeServer(agent, request, self.register, rows)) as server:
            source = NodeFilesAccess(server, self.register)
            try:
                records = self.delivery(source).deliver(
                    self.step, [*nodes.values()], {name: listing}
                )
            except InsufficientSpace as full:
                raise DeferredStep(f"waits: {full.summary}", full.detail, code=full.code) from full
        for rank, start in ranks:
            place = {"url": f"file://{quote(source.trees[rank.node.id])}"}
            start["run"]["load"].append({**exact, "place": place})
        return [*records]
