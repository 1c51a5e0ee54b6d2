"""Read the log of a run: some or all ranks, existing and new lines."""

from __future__ import annotations

import codecs
import heapq
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.protocol.runs import LogLinesQuery, LogStreamQuery
from trainctl.errors import NodeError, NodeTimeout, NodeUnreachable, UnknownOnNode, UsageError
from trainctl.operations.runs.lookup import JobRun, check_rank, run_control
from trainctl.operations.streams import iterate_callbacks, prefetch_first
from trainctl.operations.workspace import Workspace
from trainctl.resources.runs.run_control import RunControl

if TYPE_CHECKING:
    from trainctl.model.reports import LogBatch, UnreachableNode

_MOST_LOGS = 256
"""How many logs are read at the same time, each by a thread over a connection to its node."""

RETRY_SECONDS = 2.0
"""Delay before a retry of an unreachable node."""


@dataclass(frozen=True, slots=True)
class LogTime:
    """Unix time in seconds, or with ``ago`` seconds before the node's now."""

    seconds: float
    ago: bool = False

    @property
    def request(self) -> dict[str, float]:
        """The JSON form of requests."""
        return {"ago" if self.ago else "at": self.seconds}


@dataclass(frozen=True, slots=True)
class LogSelection:
    """Filter of a log: lines from ``since`` to ``until`` that match ``grep``.

    ``tail`` limits them to the last lines of each rank. ``follow`` adds new lines. ``prepare``
    selects the log of the prepare commands instead.
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
    workspace: Workspace,
    runs: Sequence[JobRun],
    selection: LogSelection,
    take: Callable[[LogBatch | UnreachableNode], None],
) -> None:
    """Pass on the lines of the logs of runs, several runs and ranks merged by time.

    A single rank is read by this thread, which is faster. Passes on unreachable nodes at the end; NodeUnreachable if all
    are. With ``follow``, retries them.
    """
    from trainctl.model.reports import unreachable_nodes

    cancelled = threading.Event()

    def cancel() -> None:
        cancelled.set()
        workspace.agents.close()

    readers = _readers(workspace, runs, selection, cancelled)
    if len(readers) == 1:
        readers[0].read(take, follow=selection.follow)
    else:
        produce = [partial(reader.read, will_follow=selection.follow) for reader in readers]
        existing = [iterate_callbacks(producer, cancel=cancel) for producer in produce]
        for batch in heapq.merge(*prefetch_first(existing), key=lambda batch: batch.time):
            take(batch)
        produce = [partial(reader.read, follow=True) for reader in readers if selection.follow]
        for batch in iterate_callbacks(*produce, cancel=cancel) if produce else ():
            take(batch)
    if selection.follow:
        return
    errors = [(reader, reader.unreachable) for reader in readers if reader.unreachable is not None]
    if errors and len(errors) == len(readers):
        raise errors[0][1]
    for run in runs:
        unreachable = {reader.rank: error for reader, error in errors if reader.run is run}
        for node in unreachable_nodes(run.record, unreachable):
            take(node)


def _readers(
    workspace: Workspace,
    runs: Sequence[JobRun],
    selection: LogSelection,
    cancelled: threading.Event,
) -> list[_RankLogReader]:
    """Return a reader for each log; UsageError if there are too many."""
    for run in runs:
        check_rank(run, selection.rank)
    readers = [
        _RankLogReader(workspace, run, record.rank, selection, cancelled)
        for run in runs
        for record in run.record.ranks
        if selection.rank in (None, record.rank)
    ]
    if len(readers) > _MOST_LOGS:
        raise UsageError(
            f"the runs have {len(readers)} logs; at most {_MOST_LOGS} are read at the same time",
            "Name a single job, or use --rank 0.",
        )
    return readers


class _RankLogReader:
    """Reads one rank's log, and continues where it was interrupted."""

    def __init__(
        self,
        workspace: Workspace,
        run: JobRun,
        rank: int,
        selection: LogSelection,
        cancelled: threading.Event,
    ) -> None:
        self._workspace = workspace
        self._cancelled = cancelled
        self.run = run
        self.rank = rank
        self.unreachable: NodeUnreachable | None = None
        self._request = selection.request
        self._frames = LogFrameParser(rank, run.record.id)

    def read(
        self, take: Callable[[LogBatch], None], *, follow: bool = False, will_follow: bool = False
    ) -> None:
        """Pass on existing lines, or set ``unreachable`` if the node is; with ``follow``, new lines until the run ends."""
        while True:
            try:
                self._call(take, follow=follow, open_end=will_follow)
            except NodeUnreachable as error:
                if not follow:
                    self.unreachable = error
                    return
                if not self._cancelled.is_set():
                    self._workspace.notify(f"{error.summary}; retrying")
                if self._cancelled.wait(RETRY_SECONDS):
                    return
                self._frames.restart()
            else:
                return

    def _call(self, take: Callable[[LogBatch], None], *, follow: bool, open_end: bool) -> None:
        runs: RunControl = run_control(self._workspace)
        offset = self._frames.offset
        request = LogStreamQuery(**self._request, follow=follow, open_end=open_end, offset=offset)
        record = self.run.record

        def parse(data: bytes) -> None:
            for batch in self._frames.take(data):
                take(batch)
            if self._frames.offset:
                self._request["tail"] = None  # a retry continues after these lines

        try:
            runs.read_lines(record, self.rank, request, parse)
        except UnknownOnNode as error:
            node = next(rank.node for rank in record.ranks if rank.rank == self.rank)
            raise UnknownOnNode(
                f"run {record.number} ({record.id}) not found on {node}",
                "Its log was deleted from the node.",
                address=str(self.run.job.address),
            ) from error
        except NodeTimeout as error:
            pattern = self._request["grep"]
            if pattern is None:
                raise
            raise NodeError(
                f"--grep {pattern!r} timed out on a line of the log: {error.summary}",
                "Use a simpler expression: for example foo instead of [a-z]*foo.",
                address=str(self.run.job.address),
                code="slow-pattern",
            ) from error


class LogFrameParser:
    """Parses one rank's frames; ``offset`` is where to continue."""

    def __init__(self, rank: int, run: str = "") -> None:
        self.rank = rank
        self.run = run
        self.offset = 0
        self._head: Mapping[str, Any] | None = None
        self._data = bytearray()
        self._reported = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def restart(self) -> None:
        """Drop an incomplete frame before a new call."""
        self._head = None
        self._data.clear()

    def take(self, data: bytes) -> Iterator[LogBatch]:
        """Yield the complete frames."""
        self._data += data
        while (batch := self._next()) is not None:
            if batch.text is not None or batch.skipped_bytes or batch.prepared_by:
                yield batch

    def _next(self) -> LogBatch | None:
        from trainctl.model.reports import LogBatch

        if self._head is None:
            end = self._data.find(b"\n")
            if end < 0:
                return None
            self._head = json.loads(self._data[:end])
            del self._data[: end + 1]
        head, size = self._head, int(self._head.get("bytes", 0))
        if len(self._data) < size:
            return None
        self._head = None
        self.offset = int(head.get("next", self.offset))
        time, skipped_bytes = float(head.get("time", 0.0)), int(head.get("skipped_bytes", 0))
        is_open = bool(head.get("open"))
        if skipped_bytes:
            self._decoder.reset()
        text = self._decoded(size, is_open=is_open)
        if skipped_bytes or not text:
            by = "" if self._reported else str(head.get("prepared_by", ""))
            self._reported = self._reported or bool(by)  # a retry sends it again
            return LogBatch(
                self.rank, time, skipped_bytes=skipped_bytes, prepared_by=by, run=self.run
            )
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        text = text if is_open else text.removesuffix("\n")
        return LogBatch(self.rank, time, text, is_open, run=self.run)

    def _decoded(self, size: int, *, is_open: bool) -> str:
        """Remove and decode so many bytes; a character split between frames is kept for the next.

        An empty heartbeat frame does not end the open line.
        """
        if is_open or self._decoder.getstate()[0]:
            text = self._decoder.decode(self._data[:size], final=not is_open) if size else ""
        else:
            with memoryview(self._data) as view:  # complete lines, without a copy
                text = str(view[:size], "utf-8", "replace")
        del self._data[:size]
        return text
