"""A process on a node that serves many calls. See DESIGN.md, "Sessions"."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.protocol.wire import FrameDecoder, encode_frame
from trainctl.errors import NodeError, NodeTimeout, NodeUnreachable
from trainctl.plugin_api.provider import CommandOutput, Transport
from trainctl.remote.processes import InputFeed
from trainctl.remote.responses import printable_tail

METHOD = "session"
_CONFIRM_SECONDS = 5.0  # killing a process group takes milliseconds; a dead link answers never

_SessionFrame = tuple[Mapping[str, Any], bytes]


@dataclass(frozen=True, slots=True)
class SessionCall:
    """A call; ``data`` is its input, ``timeout`` in seconds without output."""

    node_label: str
    method: str
    data: bytes
    on_stdout: Callable[[bytes], None]
    timeout: float


class NodeSession:
    """A session, started in a thread; its program reads ``head`` first. Thread-safe."""

    def __init__(self, transport: Transport, argv: Sequence[str], head: bytes = b"") -> None:
        self._transport = transport
        self._argv = argv
        self._feed = InputFeed()
        self._frames = FrameDecoder()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._calls: dict[int, queue.SimpleQueue[_SessionFrame | None]] = {}
        self._output: CommandOutput | None = None
        self._error: BaseException | None = None
        self._closed = False
        self.over = False
        """Whether it accepts no more calls."""
        self._feed.put(head)
        self._thread = threading.Thread(target=self._run, daemon=True, name="session")
        self._thread.start()

    def call(self, call: SessionCall) -> CommandOutput | None:
        """Run a call; its output, or None if the session was over before.

        If the session ends during the call, its output or error is the call's. Any error here cancels the remote call.
        """
        frames: queue.SimpleQueue[_SessionFrame | None] = queue.SimpleQueue()
        with self._lock:
            if self.over:
                return None
            number = next(self._numbers)
            self._calls[number] = frames
        try:
            self._feed.put(encode_frame({"call": number, "method": call.method}, call.data))
            return self._wait_for_exit(frames, call)
        except NodeUnreachable:
            self._cancel_call(number, frames)
            raise
        except BaseException:
            self._feed.put(encode_frame({"call": number}))
            raise
        finally:
            with self._lock:
                del self._calls[number]

    def close(self) -> None:
        """End the session and all calls in progress."""
        self.over = self._closed = True
        self._feed.close()

    def join(self, seconds: float) -> None:
        """Wait for the end, at most ``seconds``, if its program was started."""
        if self._feed.began is not None:
            self._thread.join(seconds)

    def _wait_for_exit(
        self, frames: queue.SimpleQueue[_SessionFrame | None], call: SessionCall
    ) -> CommandOutput:
        errors = bytearray()
        last_activity = time.monotonic()
        while True:
            try:
                item = frames.get(timeout=self._remaining_silence(last_activity, call.timeout))
            except queue.Empty:
                if self._remaining_silence(last_activity, call.timeout) > 0:
                    continue
                raise NodeTimeout(
                    f"{call.node_label}: a program timed out after {call.timeout:g} s",
                    "The program and its processes were stopped.",
                ) from None
            if item is None:
                return self.outcome(call.node_label)
            last_activity = time.monotonic()
            head, data = item
            if "exit" in head:
                return CommandOutput(head["exit"], b"", bytes(errors))
            if head.get("stream") == 1:
                call.on_stdout(data)
            else:
                errors += data

    def _remaining_silence(self, last_activity: float, timeout: float) -> float:
        """Seconds until a call times out, not counting the session's start."""
        now = time.monotonic()
        return max(0.0, max(last_activity, self._feed.began or now) + timeout - now)

    def outcome(self, node_label: str) -> CommandOutput:
        """Output or error of a session that is over."""
        if isinstance(self._error, ValueError):
            raise NodeError(
                f"unexpected response from node {node_label} (not from the node program)",
                printable_tail(str(self._error).encode()),
                code="node-program-failed",
            )
        if self._error is not None:
            raise self._error
        if self._output is None or self._closed:
            raise NodeUnreachable(f"{node_label}: a program was stopped before it responded")
        return self._output

    def _cancel_call(self, number: int, frames: queue.SimpleQueue[_SessionFrame | None]) -> None:
        """Cancel a call that timed out, and end the session if it doesn't confirm."""
        if self.over:
            return
        self._feed.put(encode_frame({"call": number}))
        deadline = time.monotonic() + _CONFIRM_SECONDS
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                item = frames.get(timeout=remaining)
            except queue.Empty:
                break
            if item is None or "exit" in item[0]:
                return
        self.close()

    def _run(self) -> None:
        try:
            self._output = self._transport.run(self._argv, stdin=self._feed, on_stdout=self._parse)
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            self._error = error
        finally:
            with self._lock:
                self.over = True
                for frames in self._calls.values():
                    frames.put(None)
            self._feed.close()

    def _parse(self, data: bytes) -> None:
        """Pass output on to calls. ValueError for invalid data, which ends the session."""
        for head, body in self._frames.feed(data):
            with self._lock:
                frames = self._calls.get(head["call"])
            if frames is not None:
                frames.put((head, body))


class NodeSessions:
    """Sessions over one transport, by command line. Thread-safe."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._open: dict[tuple[str, ...], NodeSession] = {}

    def call(self, argv: Sequence[str], head: bytes, call: SessionCall) -> CommandOutput:
        """Call a program in its session, started with ``argv`` and ``head`` if needed."""
        while True:
            session, is_new = self._session((*argv, METHOD), head)
            output = session.call(call)
            if output is not None:
                return output
            if is_new:  # it ended at once, and so would the next
                return session.outcome(call.node_label)

    def open(self, argv: Sequence[str]) -> None:
        """Start a session before its first call."""
        self._session((*argv, METHOD), b"")

    def end(self) -> None:
        """End all sessions and their calls."""
        with self._lock:
            for session in self._open.values():
                session.close()

    def wait(self, deadline: float) -> None:
        """Wait for their end until ``deadline`` in monotonic seconds."""
        with self._lock:
            sessions = [*self._open.values()]
            self._open.clear()
        for session in sessions:
            session.join(max(0.0, deadline - time.monotonic()))

    def _session(self, argv: tuple[str, ...], head: bytes) -> tuple[NodeSession, bool]:
        """Find or start a session; True if it was started now."""
        with self._lock:
            session = self._open.get(argv)
            is_new = session is None or session.over
            if session is None or is_new:
                session = self._open[argv] = NodeSession(self._transport, argv, head)
            return session, is_new
