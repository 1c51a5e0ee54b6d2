"""One process on a node that answers many calls. See DESIGN.md beside this file, "Sessions"."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from trainctl.base.protocol.wire import Frames, frame
from trainctl.errors import NodeError, NodeSilent, NodeUnreachable
from trainctl.remote.answers import readable
from trainctl.remote.programs import Feed
from trainctl.spi.transport import Output, Transport

VERB = "session"
_CONFIRM_SECONDS = 5.0

_Said = tuple[Mapping[str, Any], bytes]


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked: ``data`` is the call's standard input, ``timeout`` in seconds of silence, ``who`` the node in errors."""

    who: str
    verb: str
    data: bytes
    on_stdout: Callable[[bytes], None]
    timeout: float


class Session:
    """Starts at once, in a thread; ``head`` is what its program reads before the first frame. Safe to use from many threads."""

    def __init__(self, transport: Transport, argv: Sequence[str], head: bytes = b"") -> None:
        self._transport = transport
        self._argv = argv
        self._feed = Feed()
        self._frames = Frames()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._calls: dict[int, queue.SimpleQueue[_Said | None]] = {}
        self._ended: Output | None = None
        self._failed: BaseException | None = None
        self._closed = False
        self.over = False
        """Whether it takes no calls any more."""
        self._feed.put(head)
        self._thread = threading.Thread(target=self._run, daemon=True, name="session")
        self._thread.start()

    def call(self, call: Call) -> Output | None:
        """What the call left behind, its output handed over as it arrived; None if the session was over before.

        Where the session ends instead of the call its end is the call's, or its error. Whatever goes wrong here ends the call there.
        """
        said: queue.SimpleQueue[_Said | None] = queue.SimpleQueue()
        with self._lock:
            if self.over:
                return None
            number = next(self._numbers)
            self._calls[number] = said
        try:
            self._feed.put(frame({"call": number, "verb": call.verb}, call.data))
            return self._heard(said, call)
        except NodeUnreachable:
            self._give_up(number, said)
            raise
        except BaseException:
            self._feed.put(frame({"call": number}))
            raise
        finally:
            with self._lock:
                del self._calls[number]

    def load(self, verbs: Sequence[str]) -> None:
        """Have it load what does these verbs, so that calls find that done."""
        for verb in verbs:
            self._feed.put(frame({"call": 0, "load": verb}))

    def close(self) -> None:
        """Have it end, with every call that is under way."""
        self.over = self._closed = True
        self._feed.close()

    def join(self, seconds: float) -> None:
        """Until it has ended, but not longer; not at all if its program was not started yet."""
        if self._feed.began is not None:
            self._thread.join(seconds)

    def _heard(self, said: queue.SimpleQueue[_Said | None], call: Call) -> Output:
        errors = bytearray()
        heard = time.monotonic()
        while True:
            try:
                item = said.get(timeout=self._patience(heard, call.timeout))
            except queue.Empty:
                if self._patience(heard, call.timeout) > 0:
                    continue
                raise NodeSilent(
                    f"{call.who}: a program was silent for {call.timeout:g} s",
                    "It was ended with what it had started.",
                ) from None
            if item is None:
                return self.outcome(call.who)
            heard = time.monotonic()
            head, data = item
            if "exit" in head:
                return Output(head["exit"], b"", bytes(errors))
            if head.get("stream") == 1:
                call.on_stdout(data)
            else:
                errors += data

    def _patience(self, heard: float, timeout: float) -> float:
        """How long a call may be silent yet. Nothing counts before the program was started: the user may be asked about a host's key."""
        now = time.monotonic()
        return max(0.0, max(heard, self._feed.began or now) + timeout - now)

    def outcome(self, who: str) -> Output:
        """How a session ended that is over: what it left behind, or its error, to be that of a call to the node ``who``."""
        if isinstance(self._failed, ValueError):
            raise NodeError(
                f"node {who} answers with something else than the node program would",
                readable(str(self._failed).encode()),
                code="node-program",
            )
        if self._failed is not None:
            raise self._failed
        if self._ended is None or self._closed:
            raise NodeUnreachable(f"{who}: a program was ended before it had answered")
        return self._ended

    def _give_up(self, number: int, said: queue.SimpleQueue[_Said | None]) -> None:
        """End a call that was silent; and the session if that doesn't answer either."""
        if self.over:
            return
        self._feed.put(frame({"call": number}))
        deadline = time.monotonic() + _CONFIRM_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                item = said.get(timeout=left)
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
                for said in self._calls.values():
                    said.put(None)
            self._feed.close()

    def _take(self, data: bytes) -> None:
        """Hand over what calls say. ValueError ends the session: it is something else than a node program's."""
        for head, body in self._frames.feed(data):
            with self._lock:
                said = self._calls.get(head["call"])
            if said is not None:
                said.put((head, body))


class Sessions:
    """The sessions over one transport, by what starts them; safe to use from many threads."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._open: dict[tuple[str, ...], Session] = {}

    def call(self, argv: Sequence[str], head: bytes, call: Call) -> Output:
        """Call a program, whose session is started where there is none: by ``argv``, with ``head`` as the beginning of its input."""
        while True:
            session, fresh = self._session((*argv, VERB), head)
            output = session.call(call)
            if output is not None:
                return output
            if fresh:  # it ended as soon as it had begun, and so would the next
                return session.outcome(call.who)

    def open(self, argv: Sequence[str], verbs: Sequence[str]) -> None:
        """Start one beforehand, unless that was done; see ``Session.load``."""
        if (*argv, VERB) not in self._open:
            session, _ = self._session((*argv, VERB), b"")
            session.load(verbs)

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

    def _session(self, argv: tuple[str, ...], head: bytes) -> tuple[Session, bool]:
        """The session, and whether it was started now."""
        with self._lock:
            found = self._open.get(argv)
            fresh = found is None or found.over
            if found is None or fresh:
                found = self._open[argv] = Session(self._transport, argv, head)
            return found, fresh
