"""Checkpoints of runs that exist: asked of their store, and of their nodes for what has not reached it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainctl.base.failure import Failure
from trainctl.base.protocol import checkpoints as protocol
from trainctl.base.protocol.runs import UploadStatus
from trainctl.errors import NodeError, NodeUnreachable, StorageError, UnknownOnNode
from trainctl.jobs.checkpoints import CheckpointAccess
from trainctl.jobs.environment import checkpoint_directory, file_name
from trainctl.model.address import Address
from trainctl.model.reports import UnreachableNode, unreachable_nodes
from trainctl.model.run import RankRecord, RunRecord
from trainctl.resources.run_control import QUERY_SECONDS, RunControl

if TYPE_CHECKING:
    from trainctl.base.checkpoints.manifests import RunCheckpoints

Row = dict[str, Any]
_AT_ONCE = 16
"""How many nodes are asked at the same time."""


class CheckpointClient:
    """Of one run. A bucket is asked from here, a directory through the nodes that see it."""

    def __init__(
        self,
        control: RunControl,
        access: CheckpointAccess,
        address: Address,
        project: str,
        run: RunRecord,
    ) -> None:
        self._control = control
        self._access = access
        self._address = address
        self._run = run
        self._prefix = f"{project}/{file_name(address)}/{run.number}-{run.id}"
        self._project = project
        self._place = dict(run.store or {"url": None, "secret": None})

    @property
    def in_bucket(self) -> bool:
        """Whether they are kept where everybody can reach them."""
        return str(self._place["url"] or "").startswith("s3:")

    def rows(self, *, brief: bool = True, of: int | None = None) -> list[Row]:
        """Every checkpoint of every rank: a manifest each of those that are complete, with ``state``, ``url`` and ``node``.

        NodeUnreachable if nobody can tell, be it of one rank; what only an unreachable node knows is left out where there is a store
        beside it: a bucket, or a directory in which another rank's node sees what that rank has kept; and where only that ``of``
        another rank is wanted. What a forgotten node knew is gone.
        """
        found, errors = self._collect(brief=brief)
        for rank, why in errors.items():
            if of in (None, rank):
                raise why
        return found

    def survey(self) -> tuple[list[Row], tuple[UnreachableNode, ...]]:
        """The rows that somebody can tell, and the nodes of the ranks of which nobody can. NodeUnreachable if these are all."""
        found, errors = self._collect(brief=True)
        if errors and len(errors) == len(self._run.ranks):
            raise next(iter(errors.values()))
        return found, unreachable_nodes(self._run, errors)

    def _collect(self, *, brief: bool) -> tuple[list[Row], dict[int, NodeUnreachable]]:
        """What is known, and of the ranks of which nobody could tell why."""
        complete = self._in_bucket(brief=brief) if self.in_bucket else []
        found = [self._row(one, "complete", None) for one in complete]
        known = {(one["rank"], one["name"]) for one in complete}
        answers, errors = self._ask_all(brief=brief)
        unknown: dict[int, NodeUnreachable] = {}
        for rank in self._run.ranks:
            answer = answers.get(rank.rank)
            if answer is not None:
                rows = self._of_rank(rank, answer)
            else:
                rows = self._seen_by_others(rank.rank, answers)
                why = errors[rank.rank]
                if isinstance(why, NodeUnreachable) and not self.in_bucket and not rows:
                    unknown[rank.rank] = why
            found += [row for row in rows if (row["rank"], row["name"]) not in known]
        return _merge_rank_states(found), unknown

    def _of_rank(self, rank: RankRecord, answer: protocol.CheckpointsResponse) -> list[Row]:
        """What a rank's own node has of it."""
        complete = [one for one in answer["complete"] if one["rank"] == rank.rank]
        found = [self._row(one, "complete", rank.node) for one in complete]
        done = {one["name"] for one in complete}
        state = "uploading" if answer["live"] else "incomplete"
        for one in answer["unfinished"]:
            listed = not self.in_bucket or one["name"] in answer["pending"]
            if one["rank"] == rank.rank and one["name"] not in done and listed:
                found.append(self._row(one, state, rank.node))
        return found

    def _seen_by_others(
        self, rank: int, answers: Mapping[int, protocol.CheckpointsResponse]
    ) -> list[Row]:
        """What other nodes see in the store of a rank whose node can't be asked."""
        told = [one for answer in answers.values() for one in answer["complete"]]
        theirs = {str(one["name"]): one for one in told if one["rank"] == rank}
        return [self._row(their, "complete", None) for their in theirs.values()]

    def read(
        self,
        rank: int,
        objects: Sequence[protocol.CheckpointObjectRange],
        on_bytes: Callable[[bytes], None],
    ) -> None:
        """Hand over objects one after another, each a ``{key, offset}``. A directory is read through another rank's node where that of the rank is away."""
        if self.in_bucket:
            with _translated_errors(), self._open_store() as run_store:
                for one in objects:
                    run_store.store.read(one["key"], one["offset"], on_bytes)
            return
        arrived = False

        def take(data: bytes) -> None:
            nonlocal arrived
            arrived = True
            on_bytes(data)

        others = [one.rank for one in self._run.ranks if one.rank != rank]
        left = [rank, *(others if self._place["url"] else ())]
        while left:
            try:
                self._read_through(left.pop(0), objects, take)
            except (NodeUnreachable, UnknownOnNode):
                if arrived or not left:
                    raise
            else:
                return

    def _read_through(
        self,
        rank: int,
        objects: Sequence[protocol.CheckpointObjectRange],
        on_bytes: Callable[[bytes], None],
    ) -> None:
        agent, node = self._control.node_of_rank(self._run, rank)
        request = protocol.ReadObjectsRequest(
            data=node.data, prefix=self._prefix, place=self._place, objects=[*objects]
        )
        agent.read(protocol.READ_OBJECTS, request, on_bytes)

    @contextmanager
    def leased(self, rank: int, name: str) -> Iterator[None]:
        """Keep retention from removing one from a bucket while it is read; where that may not be written, it may go."""
        if not self.in_bucket:
            yield
            return
        with self._open_store() as run_store:
            key = None
            with suppress(Failure, OSError):
                key = run_store.lease(rank, name)
            try:
                yield
            finally:
                if key is not None:
                    with _translated_errors():
                        run_store.store.delete(key)

    def url(self, key: str, seconds: int) -> str:
        """Where an object can be had; from a bucket by anybody, for so many seconds."""
        if self.in_bucket:
            with _translated_errors(), self._open_store() as run_store:
                return run_store.store.url(key, seconds)
        rank = self._run.ranks[0].rank
        _, node = self._control.node_of_rank(self._run, rank)
        url = self._place["url"] or (Path(node.data) / "checkpoints").as_uri()
        from trainctl.base.checkpoints.stores import open_checkpoint_store

        with _translated_errors():
            return open_checkpoint_store({"url": url}, {}).url(key, seconds)

    def upload(self) -> UploadStatus:
        """Bring what an ended run left behind to its store; how it stands then."""
        sync: UploadStatus = {}
        for rank in self._run.ranks:
            agent, node = self._control.node_of_rank(self._run, rank.rank)
            secrets = self._access.values(self._place)
            request = protocol.UploadCheckpointsRequest(
                root=node.root, data=node.data, key=self._run.key, secrets=secrets
            )
            sync = agent.call(protocol.UPLOAD_CHECKPOINTS, request)["sync"]
        return sync

    def remove(self) -> None:
        """Delete them, from the store and from the nodes."""
        if self.in_bucket:
            with _translated_errors(), self._open_store() as run_store:
                run_store.remove_all()
        for rank in self._run.ranks:
            agent, node = self._control.node_of_rank(self._run, rank.rank)
            directory = checkpoint_directory(node, self._address, self._project, self._run)
            place = None if self.in_bucket else self._place
            request = protocol.RemoveCheckpointsRequest(
                data=node.data, directory=str(directory), prefix=self._prefix, place=place
            )
            agent.call(protocol.REMOVE_CHECKPOINTS, request)

    def _ask_all(
        self, *, brief: bool
    ) -> tuple[dict[int, protocol.CheckpointsResponse], dict[int, NodeError]]:
        """What each rank's node says, and of those that say nothing why. All at once, so that who doesn't answer is waited for once."""
        answers: dict[int, protocol.CheckpointsResponse] = {}
        errors: dict[int, NodeError] = {}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checkpoints") as pool:
            asked = {
                rank.rank: pool.submit(self._ask, rank.rank, brief=brief)
                for rank in self._run.ranks
            }
        for rank, answer in asked.items():
            try:
                answers[rank] = answer.result()
            except (NodeUnreachable, UnknownOnNode) as error:
                errors[rank] = error
        return answers, errors

    def _ask(self, rank: int, *, brief: bool) -> protocol.CheckpointsResponse:
        agent, node = self._control.node_of_rank(self._run, rank)
        request = protocol.CheckpointsRequest(
            root=node.root,
            data=node.data,
            key=self._run.key,
            prefix=self._prefix,
            place=None if self.in_bucket else self._place,
            brief=brief,
        )
        return agent.call(protocol.CHECKPOINTS, request, timeout=QUERY_SECONDS)

    def _in_bucket(self, *, brief: bool) -> list[Row]:
        with _translated_errors(), self._open_store() as run_store:
            found = run_store.manifests()
        return [{**one, "files": len(one["files"])} for one in found] if brief else found

    @contextmanager
    def _open_store(self) -> Iterator[RunCheckpoints]:
        # A dozen modules of the node program, which only what is done with checkpoints themselves needs.
        from trainctl.base.checkpoints.manifests import RunCheckpoints
        from trainctl.base.checkpoints.stores import open_checkpoint_store

        store = open_checkpoint_store(self._place, self._access.values(self._place))
        try:
            yield RunCheckpoints(store, self._prefix)
        finally:
            store.close()

    def _row(self, one: Mapping[str, Any], state: str, node: str | None) -> Row:
        folder = "" if one["name"] == "." else f"/{one['name']}"
        base = str(self._place["url"] or "").rstrip("/")
        if not base:
            base = f"node://{node}/checkpoints"
        url = f"{base}/{self._prefix}/rank-{one['rank']}{folder}"
        return {**one, "state": state, "url": url, "node": node}


def _merge_rank_states(rows: list[Row]) -> list[Row]:
    """A checkpoint is complete once it is on every rank that has it; until then all of them say what is missing."""
    missing = {row["name"]: row["state"] for row in rows if row["state"] != "complete"}
    several = {row["rank"] for row in rows if row["name"] != "."}
    if len(several) < 2:
        return rows
    return [
        {**row, "state": missing.get(row["name"], row["state"])} if row["name"] != "." else row
        for row in rows
    ]


@contextmanager
def _translated_errors() -> Iterator[None]:
    """What the store says, as an error of ours."""
    try:
        yield
    except Failure as error:
        raise checkpoint_store_error(error.summary, error.detail) from None
    except OSError as error:
        raise checkpoint_store_error(f"{error.filename or 'the store'}: {error.strerror}") from None


def checkpoint_store_error(summary: str, detail: str = "") -> StorageError:
    """What the store of checkpoints refuses or can't do."""
    return StorageError(summary, detail, code="checkpoint-store")
