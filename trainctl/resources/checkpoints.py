"""Checkpoints of existing runs: list, read, upload and delete them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainctl.base.listing import Listing
from trainctl.base.parallel import each
from trainctl.base.protocol.runs import UploadStatus
from trainctl.errors import (
    NodeError,
    NodeUnreachable,
    StorageError,
    TrainctlError,
    UnknownOnNode,
)
from trainctl.inputs.checkpoints import CheckpointAccess
from trainctl.inputs.environment import checkpoint_directory
from trainctl.model.reports import UnreachableNode, unreachable_nodes
from trainctl.model.run import RankRecord, RunRecord
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.responses import OnEvent
from trainctl.resources.runs.run_control import QUERY_SECONDS, RunControl

if TYPE_CHECKING:
    from trainctl.base.checkpoints.manifests import RunCheckpoints
    from trainctl.base.protocol import training as protocol

Row = dict[str, Any]
_AT_ONCE = 16
"""How many nodes are queried at the same time."""


class CheckpointClient:
    """Checkpoints of one run: in a bucket, or in a directory that nodes see."""

    def __init__(
        self,
        control: RunControl,
        access: CheckpointAccess,
        run: RunRecord,
    ) -> None:
        self._control = control
        self._access = access
        self.run = run
        self.prefix = run.checkpoint_prefix
        self.place = dict(run.store or {"url": None, "secret": None})

    @property
    def in_bucket(self) -> bool:
        """Whether the checkpoints are stored in a bucket."""
        return str(self.place["url"] or "").startswith("s3:")

    def rows(self, *, brief: bool = True, of: int | None = None) -> list[Row]:
        """List the checkpoints of every rank with ``state``, ``url`` and ``node``.

        Complete checkpoints have their manifest; ``brief`` has file counts instead of files.
        Raise NodeUnreachable if the checkpoints of a rank (or of the rank ``of``) are unknown:
        its node is unreachable, and neither a bucket nor another rank's node has them.
        """
        rows, errors = self._collect(brief=brief)
        for rank, error in errors.items():
            if of in (None, rank):
                raise error
        return rows

    def survey(self) -> tuple[list[Row], tuple[UnreachableNode, ...]]:
        """List the known checkpoints and unreachable nodes; raise if all are."""
        rows, errors = self._collect(brief=True)
        if errors and len(errors) == len(self.run.ranks):
            raise next(iter(errors.values()))
        return rows, unreachable_nodes(self.run, errors)

    def _collect(self, *, brief: bool) -> tuple[list[Row], dict[int, NodeUnreachable]]:
        """List the known checkpoints, and the error of each rank that has unknown ones."""
        complete: list[Row] = []
        if self.in_bucket:
            with _translated_errors(), self._open_store() as run_store:
                complete = run_store.manifests()
            if brief:
                complete = [{**item, "files": len(item["files"])} for item in complete]
        rows = [self._row(manifest, None, None) for manifest in complete]
        uploaded = {(manifest["rank"], manifest["name"]) for manifest in complete}
        responses: dict[int, protocol.CheckpointsResponse] = {}
        errors: dict[int, NodeError] = {}

        def query(rank: RankRecord) -> None:
            try:
                responses[rank.rank] = self.query(
                    *self._control.node_of_rank(self.run, rank.rank), brief=brief
                )
            except (NodeUnreachable, UnknownOnNode) as error:
                errors[rank.rank] = error

        each(query, self.run.ranks, _AT_ONCE)  # so that timeouts don't add up
        unknown: dict[int, NodeUnreachable] = {}
        for rank in self.run.ranks:
            response = responses.get(rank.rank)
            if response is not None:
                rank_rows = self._rows_of_rank(rank, response)
            else:  # what nodes of other ranks see in its store
                visible = {
                    str(manifest["name"]): manifest
                    for other in responses.values()
                    for manifest in other["complete"]
                    if manifest["rank"] == rank.rank
                }
                rank_rows = [self._row(manifest, None, None) for manifest in visible.values()]
                error = errors[rank.rank]
                if isinstance(error, NodeUnreachable) and not self.in_bucket and not rank_rows:
                    unknown[rank.rank] = error
            rows += [row for row in rank_rows if (row["rank"], row["name"]) not in uploaded]
        # All ranks of a checkpoint have the state of an incomplete rank, if any.
        missing = {row["name"]: row["state"] for row in rows if row["state"] != "complete"}
        if len({row["rank"] for row in rows if row["name"] != "."}) > 1:
            rows = [
                {**row, "state": missing.get(row["name"], row["state"])}
                if row["name"] != "."
                else row
                for row in rows
            ]
        return rows, unknown

    def _rows_of_rank(self, rank: RankRecord, response: protocol.CheckpointsResponse) -> list[Row]:
        """List the checkpoints of a rank on its own node."""
        complete = [manifest for manifest in response["complete"] if manifest["rank"] == rank.rank]
        rows = [self._row(manifest, None, rank.node) for manifest in complete]
        names = {manifest["name"] for manifest in complete}
        state = "uploading" if response["live"] else "incomplete"
        for checkpoint in response["unfinished"]:
            listed = not self.in_bucket or checkpoint["name"] in response["pending"]
            if checkpoint["rank"] == rank.rank and checkpoint["name"] not in names and listed:
                rows.append(self._row(checkpoint, state, rank.node))
        return rows

    def listing(self, row: Row, on_event: OnEvent) -> tuple[NodeAgent, Node, str, Listing]:
        """Verify a checkpoint on its node; return the node, the store's directory there and the files by key."""
        from trainctl.base.protocol import training as protocol

        agent, node = self._control.node_of_rank(self.run, row["rank"])
        request = protocol.CheckpointListingRequest(
            **self._request(node, brief=True), rank=row["rank"], name=row["name"]
        )
        response = agent.call(protocol.CHECKPOINT_LISTING, request, on_event=on_event)
        return agent, node, response["directory"], Listing.of_rows(response["files"])

    def read(
        self,
        rank: int,
        objects: Sequence[protocol.CheckpointObjectRange],
        on_bytes: Callable[[bytes], None],
    ) -> None:
        """Pass the bytes of objects to a callback, one object after another.

        A directory is read through another rank's node if that of the rank is unreachable.
        """
        from trainctl.base.protocol import training as protocol

        if self.in_bucket:
            with _translated_errors(), self._open_store() as run_store:
                for item in objects:
                    run_store.store.read(item["key"], item["offset"], on_bytes)
            return
        received = False

        def take(data: bytes) -> None:
            nonlocal received
            received = True
            on_bytes(data)

        others = [other.rank for other in self.run.ranks if other.rank != rank]
        remaining = [rank, *(others if self.place["url"] else ())]
        while remaining:
            try:
                agent, node = self._control.node_of_rank(self.run, remaining.pop(0))
                request = protocol.ReadObjectsRequest(
                    data=node.data, prefix=self.prefix, place=self.place, objects=[*objects]
                )
                agent.read(protocol.READ_OBJECTS, request, take)
            except (NodeUnreachable, UnknownOnNode):
                if received or not remaining:
                    raise
            else:
                return

    def points(self, rank: int) -> bytes | None:
        """Return the points of a rank that were uploaded with its checkpoints to a bucket; None if there are none."""
        from trainctl.base.checkpoints.manifests import points_key

        if not self.in_bucket:
            return None
        with _translated_errors(), self._open_store() as run_store:
            return run_store.store.get(points_key(self.prefix, rank))

    @contextmanager
    def leased(self, rank: int, name: str) -> Iterator[None]:
        """Lease a checkpoint in a bucket against retention, if the bucket is writable."""
        if not self.in_bucket:
            yield
            return
        with self._open_store() as run_store:
            key = None
            with suppress(TrainctlError, OSError):
                key = run_store.lease(rank, name)
            try:
                yield
            finally:
                if key is not None:
                    with _translated_errors():
                        run_store.store.delete(key)

    def urls(self, keys: Iterable[str], seconds: int) -> list[str]:
        """Return the URLs of objects; presigned URLs, valid for `seconds`, in a bucket."""
        if self.in_bucket:
            with _translated_errors(), self._open_store() as run_store:
                next(run_store.store.list(self.prefix), None)  # learns region and address style
                return [run_store.store.url(key, seconds) for key in keys]
        rank = self.run.ranks[0].rank
        _, node = self._control.node_of_rank(self.run, rank)
        url = self.place["url"] or (Path(node.data) / "checkpoints").as_uri()
        from trainctl.base.checkpoints.stores import open_checkpoint_store

        with _translated_errors():
            return [open_checkpoint_store({"url": url}, {}).url(key, seconds) for key in keys]

    def upload(self) -> UploadStatus:
        """Upload checkpoints that a finished run left on its nodes."""
        from trainctl.base.protocol import training as protocol

        sync: UploadStatus = {}
        for rank in self.run.ranks:
            agent, node = self._control.node_of_rank(self.run, rank.rank)
            secrets = self._access.values(self.place)
            request = protocol.UploadCheckpointsRequest(
                root=node.root, data=node.data, key=self.run.key, secrets=secrets
            )
            sync = agent.call(protocol.UPLOAD_CHECKPOINTS, request)["sync"]
        return sync

    def remove(self) -> None:
        """Delete the checkpoints from the store and from the nodes."""
        from trainctl.base.protocol import training as protocol

        if self.in_bucket:
            with _translated_errors(), self._open_store() as run_store:
                run_store.remove_all()
        for rank in self.run.ranks:
            agent, node = self._control.node_of_rank(self.run, rank.rank)
            directory = checkpoint_directory(node, self.run)
            place = None if self.in_bucket else self.place
            request = protocol.RemoveCheckpointsRequest(
                data=node.data, directory=str(directory), prefix=self.prefix, place=place
            )
            agent.call(protocol.REMOVE_CHECKPOINTS, request)

    def query(
        self, agent: NodeAgent, node: Node, *, brief: bool = True
    ) -> protocol.CheckpointsResponse:
        """List the checkpoints that a node sees."""
        from trainctl.base.protocol import training as protocol

        request = self._request(node, brief=brief)
        return agent.call(protocol.CHECKPOINTS, request, timeout=QUERY_SECONDS)

    def _request(self, node: Node, *, brief: bool) -> protocol.CheckpointsRequest:
        from trainctl.base.protocol import training as protocol

        return protocol.CheckpointsRequest(
            root=node.root,
            data=node.data,
            key=self.run.key,
            prefix=self.prefix,
            place=None if self.in_bucket else self.place,
            brief=brief,
        )

    @contextmanager
    def _open_store(self) -> Iterator[RunCheckpoints]:
        # Slow to import.
        from trainctl.base.checkpoints.manifests import RunCheckpoints
        from trainctl.base.checkpoints.stores import open_checkpoint_store

        store = open_checkpoint_store(self.place, self._access.values(self.place))
        try:
            yield RunCheckpoints(store, self.prefix)
        finally:
            store.close()

    def _row(self, checkpoint: Mapping[str, Any], state: str | None, node: str | None) -> Row:
        """Return a row; ``state`` None: that of the manifest."""
        state = state or ("unfinished" if checkpoint.get("unfinished") else "complete")
        folder = "" if checkpoint["name"] == "." else f"/{checkpoint['name']}"
        base = str(self.place["url"] or "").rstrip("/") or f"node://{node}/checkpoints"
        url = f"{base}/{self.prefix}/rank-{checkpoint['rank']}{folder}"
        return {**checkpoint, "state": state, "url": url, "node": node}


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise errors of the store as StorageError; those of secrets and of the caller stay."""
    try:
        yield
    except NodeError as error:
        raise StorageError(error.summary, error.detail, code="checkpoint-store") from None
    except OSError as error:
        summary = f"{error.filename or 'the store'}: {error.strerror}"
        raise StorageError(summary, code="checkpoint-store") from None
