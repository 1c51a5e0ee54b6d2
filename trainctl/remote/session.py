"""One process on a node that answers many calls. See DESIGN.md beside this file, "Sessions"."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from trainctl.base.protocol.wire import FrameDecoder, encode_frame
from trainctl.errors import NodeError, NodeTimeout, NodeUnreachable
from trainctl.plugin_api.provider import CommandOutput, Transport
from trainctl.remote.processes import InputFeed
from trainctl.remote.responses import printable_tail

VERB = "session"
_CONFIRM_SECONDS = 5.0

_SessionFrame = tuple[Mapping[str, Any], bytes]


@dataclass(frozen=True, slots=True)
class SessionCall:
    """What is asked: ``data`` is the call's standard input, ``timeout`` in seconds of silence, ``node_label`` the node in errors."""

    node_label: str
    method: str
    data: bytes
    on_stdout: Callable[[bytes], None]
    timeout: float


class NodeSession:
    """Starts at once, in a thread; ``head`` is what its program reads before the first frame. Safe to use from many threads."""

    def __init__(self, transport: Transport, argv: Sequence[str], head: bytes = b"") -> None:
        self._transport = transport
        self._argv = argv
        self._feed = InputFeed()
        self._frames = FrameDecoder()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._calls: dict[int, queue.SimpleQueue[_SessionFrame | None]] = {}
        self._ended: CommandOutput | None = None
        self._failed: BaseException | None = None
        self._closed = False
        self.over = False
        """Whether it takes no calls any more."""
        self._feed.put(head)
        self._thread = threading.Thread(target=self._run, daemon=True, name="session")
        self._thread.start()

    def call(self, call: SessionCall) -> CommandOutput | None:
        """What the call left behind, its output handed over as it arrived; None if the session was over before.

        Where the session ends instead of the call its end is the call's, or its error. Whatever goes wrong here ends the call there.
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
        """Have it end, with every call that is under way."""
        self.over = self._closed = True
        self._feed.close()

    def join(self, seconds: float) -> None:
        """Until it has ended, but not longer; not at all if its program was not started yet."""
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
        """How long a call may be silent yet. Nothing counts before the program was started: the user may be asked about a host's key."""
        now = time.monotonic()
        return max(0.0, max(last_activity, self._feed.began or now) + timeout - now)

    def outcome(self, node_label: str) -> CommandOutput:
        """How a session ended that is over: what it left behind, or its error, to be that of a call to the node ``node_label``."""
        if isinstance(self._failed, ValueError):
            raise NodeError(
                f"unexpected response from node {node_label} (not from the node program)",
                printable_tail(str(self._failed).encode()),
                code="node-program-failed",
            )
        if self._failed is not None:
            raise self._failed
        if self._ended is None or self._closed:
            raise NodeUnreachable(f"{node_label}: a program was stopped before it responded")
        return self._ended

    def _cancel_call(self, number: int, frames: queue.SimpleQueue[_SessionFrame | None]) -> None:
        """End a call that was silent; and the session if that doesn't answer either."""
        if self.over:
            return
        self._feed.put(encode_frame({"call": number}))
        deadline = time.monotonic() + _CONFIRM_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                item = frames.get(timeout=left)
            except queue.Empty:
                break
            if item is None or "exit" in item[0]:
                return
        self.close()

    def _run(self) -> None:
        try:
            self._ended = self._transport.run(self._argv, stdin=self._feed, on_stdout=self._take)
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            self._failed = error
        finally:
            with self._lock:
                self.over = True
                for frames in self._calls.values():
                    frames.put(None)
            self._feed.close()

    def _take(self, data: bytes) -> None:
        """Hand over what calls say. ValueError ends the session: it is something else than a node program's."""
        for head, body in self._frames.feed(data):
            with self._lock:
                frames = self._calls.get(head["call"])
            if frames is not None:
                frames.put((head, body))


class NodeSessions:
    """The sessions over one transport, by what starts them; safe to use from many threads."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._open: dict[tuple[str, ...], NodeSession] = {}

    def call(self, argv: Sequence[str], head: bytes, call: SessionCall) -> CommandOutput:
        """Call a program, whose session is started where there is none: by ``argv``, with ``head`` as the beginning of its input."""
        while True:
            session, fresh = self._session((*argv, VERB), head)
            output = session.call(call)
            if output is not None:
                return output
            if fresh:  # it ended as soon as it had begun, and so would the next
                return session.outcome(call.node_label)

    def open(self, argv: Sequence[str]) -> None:
        """Start a session before its first call."""
        self._session((*argv, VERB), b"")

    def end(self) -> None:
        """Have them all end, with every call that is under way."""
        with self._lock:
            for session in self._open.values():
                session.close()

    def wait(self, deadline: float) -> None:
        """Until they have ended, or ``deadline``, in monotonic seconds. The kernel ends what a killed session started."""
        with self._lock:
            left = [*self._open.values()]
            self._open.clear()
        for session in left:
            session.join(max(0.0, deadline - time.monotonic()))

    def _session(self, argv: tuple[str, ...], head: bytes) -> tuple[NodeSession, bool]:
        """The session, and whether it was started now."""
        with self._lock:
            found = self._open.get(argv)
            fresh = found is None or found.over
            if found is None or fresh:
                found = self._open[argv] = NodeSession(self._transport, argv, head)
            return found, fresh
