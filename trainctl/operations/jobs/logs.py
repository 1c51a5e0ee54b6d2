"""A run's own lines: of one rank or of all, some or every line, once or for as long as the run lives."""

from __future__ import annotations

import codecs
import heapq
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainctl.base.protocol.runs import LogLinesQuery, LogStreamQuery
from trainctl.errors import NodeError, NodeTimeout, NodeUnreachable, UnknownOnNode, UsageError
from trainctl.model.reports import LogBatch, UnreachableNode, unreachable_nodes
from trainctl.operations.jobs.runs import JobRun, check_rank, run_control
from trainctl.operations.streams import iterate_callbacks, merge_by_arrival, prefetch_first
from trainctl.operations.workspace import Workspace
from trainctl.resources.run_control import RunControl

RETRY_SECONDS = 2.0
"""How long to wait before a node that could not be reached is asked again."""


@dataclass(frozen=True, slots=True)
class LogTime:
    """A time in Unix seconds, or with ``ago`` so many seconds before now on the node's clock."""

    seconds: float
    ago: bool = False

    @property
    def request(self) -> dict[str, float]:
        """The form of requests."""
        return {"ago" if self.ago else "at": self.seconds}


@dataclass(frozen=True, slots=True)
class LogSelection:
    """What of a log is wanted: written from ``since`` on and before ``until``, matching ``grep``, and the last ``tail`` of
    those of each rank; with ``follow`` those to come, too. ``prepare``: of the stage before the job, in its place.
    """

    rank: int | None = None
    since: LogTime | None = None
    until: LogTime | None = None
    grep: str | None = None
    tail: int | None = None
    follow: bool = False
    prepare: bool = False

    def __post_init__(self) -> None:
        if self.follow and self.until is not None:
            raise UsageError("--follow can't be used with --until", "Remove --until.")
        if self.tail is not None and self.tail < 0:
            raise UsageError(f"--tail {self.tail}: must be at least 0")
        try:
            re.compile(self.grep or "")
        except re.error as error:
            raise UsageError(
                f"--grep {self.grep!r} is not a regular expression: {error}",
                "Escape special characters with a backslash.",
            ) from None

    @property
    def request(self) -> LogLinesQuery:
        """The request to a node."""
        return {
            "since": self.since.request if self.since else None,
            "until": self.until.request if self.until else None,
            "grep": self.grep,
            "tail": self.tail,
            "prepare": self.prepare,
        }


def read_log(
    workspace: Workspace, run: JobRun, wanted: LogSelection
) -> Iterator[LogBatch | UnreachableNode]:
    """The lines of a run's log, of several ranks by time, and those to come as they come.

    Unreachable nodes are left out and named at the end; NodeUnreachable if all are. With ``follow`` they are waited for.
    """
    check_rank(run, wanted.rank)
    ranks = [one.rank for one in run.record.ranks]
    left = threading.Event()

    def cancel() -> None:
        left.set()
        workspace.agents.close()

    readers = [
        _RankLogReader(workspace, run, rank, wanted, left, cancel)
        for rank in ranks
        if wanted.rank in (None, rank)
    ]
    if len(readers) == 1:
        yield from readers[0].read(follow=wanted.follow)
        return
    read_existing = [reader.read_existing(will_follow=wanted.follow) for reader in readers]
    yield from heapq.merge(*prefetch_first(read_existing), key=lambda piece: piece.time)
    if wanted.follow:
        yield from merge_by_arrival([reader.read(follow=True) for reader in readers], cancel)
        return
    unreachable = {
        reader.rank: reader.unreachable for reader in readers if reader.unreachable is not None
    }
    if unreachable and len(unreachable) == len(readers):
        raise next(iter(unreachable.values()))
    yield from unreachable_nodes(run.record, unreachable)


class _RankLogReader:
    """One rank's log, from where it was last read."""

    def __init__(
        self,
        workspace: Workspace,
        run: JobRun,
        rank: int,
        wanted: LogSelection,
        left: threading.Event,
        cancel: Callable[[], None],
    ) -> None:
        self._workspace = workspace
        self._left = left
        self._cancel = cancel
        self._run = run
        self.rank = rank
        self.unreachable: NodeUnreachable | None = None
        self._request = wanted.request
        self._frames = LogFrameParser(rank)

    def read_existing(self, *, will_follow: bool) -> Iterator[LogBatch]:
        """What is there, as far as the node can be asked; ``unreachable`` says why not."""
        try:
            yield from self.read(follow=False, will_follow=will_follow)
        except NodeUnreachable as error:
            self.unreachable = error

    def read(self, *, follow: bool, will_follow: bool = False) -> Iterator[LogBatch]:
        """What is there; with ``follow`` to the end of the run, over whatever happens to the connection."""
        while True:
            try:
                yield from self._call(follow=follow, open_end=will_follow)
            except NodeUnreachable as error:
                if not follow:
                    raise
                if not self._left.is_set():
                    self._workspace.tell(f"{error.summary}; retrying")
                if self._left.wait(RETRY_SECONDS):
                    return
                self._frames.restart()
            else:
                return

    def _call(self, *, follow: bool, open_end: bool) -> Iterator[LogBatch]:
        runs: RunControl = run_control(self._workspace)
        offset = self._frames.offset
        request = LogStreamQuery(**self._request, follow=follow, open_end=open_end, offset=offset)
        record = self._run.record

        def produce(take: Callable[[bytes], None]) -> None:
            runs.read_lines(record, self.rank, request, take)

        try:
            for data in iterate_callbacks(produce, self._cancel):
                yield from self._frames.take(data)
                if self._frames.offset:
                    self._request["tail"] = None  # from here on every line is wanted
        except UnknownOnNode as error:
            node = next(rank.node for rank in record.ranks if rank.rank == self.rank)
            raise UnknownOnNode(
                f"run {record.number} ({record.id}) not found on {node}",
                "Its log was deleted from the node.",
                address=str(self._run.job.address),
            ) from error
        except NodeTimeout as error:
            pattern = self._request["grep"]
            if pattern is None:
                raise
            raise NodeError(
                f"--grep {pattern!r} timed out on a line of the log: {error.summary}",
                "Use a simpler expression: for example foo instead of [a-z]*foo.",
                address=str(self._run.job.address),
                code="slow-pattern",
            ) from error


class LogFrameParser:
    """One rank's frames; ``offset`` is where another call would go on."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.offset = 0
        self._head: Mapping[str, Any] | None = None
        self._data = bytearray()
        self._reported = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def restart(self) -> None:
        """Forget half a frame: another call begins with a whole one."""
        self._head = None
        self._data.clear()

    def take(self, data: bytes) -> Iterator[LogBatch]:
        """What is complete by now."""
        self._data += data
        while (piece := self._next()) is not None:
            if piece.lines or piece.skipped_bytes or piece.prepared_by:
                yield piece

    def _next(self) -> LogBatch | None:
        if self._head is None:
            end = self._data.find(b"\n")
            if end < 0:
                return None
            self._head = json.loads(self._data[:end])
            del self._data[: end + 1]
        head, size = self._head, int(self._head.get("bytes", 0))
        if len(self._data) < size:
            return None
        text = self._text(head, self._data[:size])
        del self._data[:size]
        self._head = None
        self.offset = int(head.get("next", self.offset))
        return self._piece(head, text)

    def _text(self, head: Mapping[str, Any], data: bytearray) -> str:
        """The bytes as text; a character that the end of an open frame goes through comes with the next one."""
        if head.get("skipped_bytes"):
            self._decoder.reset()
        # A sign of life says nothing of the line that is open.
        return self._decoder.decode(data, final=not head.get("open")) if data else ""

    def _piece(self, head: Mapping[str, Any], text: str) -> LogBatch:
        time, skipped_bytes = float(head.get("time", 0.0)), int(head.get("skipped_bytes", 0))
        if skipped_bytes or not text:
            by = "" if self._reported else str(head.get("prepared_by", ""))
            self._reported = self._reported or bool(by)  # another call says it again
            return LogBatch(self.rank, time, skipped_bytes=skipped_bytes, prepared_by=by)
        goes_on = bool(head.get("open"))
        *whole, last = (text if goes_on else text.removesuffix("\n")).split("\n")
        lines = [line.removesuffix("\r") for line in whole]
        lines.append(last if goes_on else last.removesuffix("\r"))
        return LogBatch(self.rank, time, tuple(lines), goes_on)
