"""Run local programs with bidirectional streams, timeouts and clean termination."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import NodeTimeout, NodeUnreachable

_PIECE_BYTES = 2**18
"""Sent at once: the clock of silence starts again after each."""
_FULL_PIPE = 2**16
"""Bytes that a pipe holds by default on Linux."""
_DRAIN_SECONDS = 0.2
"""After a program's end: descendants that left may hold its streams open forever."""
_POLL_SECONDS = 0.5
"""Between looks at whether the program has ended, and at errors of its input."""
OnBytes = Callable[[bytes], object]


class InputFeed:
    """Input of a running program: ``put`` from any thread, iterated by one reader, which blocks."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.began: float | None = None
        """Time of the first read in monotonic seconds: the program has been started by then."""

    def put(self, data: bytes) -> None:
        """Send data; ignored after the end."""
        self._items.put(data)

    def close(self) -> None:
        """Signal the end of input. Idempotent."""
        self._items.put(None)

    def __iter__(self) -> Iterator[bytes]:
        self.began = self.began or time.monotonic()
        while (item := self._items.get()) is not None:
            yield item


class InputSender:
    """Sends a program's input in a thread, so that input never delays output.

    ``write`` and ``end`` raise one of ``ended`` when the program doesn't read on: its output counts.
    """

    def __init__(
        self,
        stdin: Iterable[bytes],
        write: Callable[[bytes], object],
        end: Callable[[], object],
        ended: tuple[type[Exception], ...],
    ) -> None:
        self._input = stdin
        self._write = write
        self._end = end
        self._ended = ended
        self._problem: BaseException | None = None
        self._active_at = time.monotonic()
        threading.Thread(target=self._send, daemon=True, name="input").start()

    def wait_seconds(self, active: bool, timeout: float | None, node_label: str) -> float:
        """Return how long to wait for output, which was ``active`` now.

        Raises the error of the input, or NodeTimeout after ``timeout`` seconds without data in either direction.
        """
        if self._problem is not None:
            raise self._problem
        now = time.monotonic()
        if active:
            self._active_at = now
        if timeout is None:
            return _POLL_SECONDS
        left = self._active_at + timeout - now
        if left <= 0:
            raise NodeTimeout(
                f"{node_label} timed out after {timeout:g} s",
                "The command and its processes were stopped.",
            )
        return min(_POLL_SECONDS, left)

    def _send(self) -> None:
        try:
            for data in self._input:
                for start in range(0, len(data), _PIECE_BYTES):
                    if not self._is_done(self._write, data[start : start + _PIECE_BYTES]):
                        return
                    self._active_at = time.monotonic()
            self._is_done(self._end)
        except BaseException as problem:  # noqa: BLE001 - raised in the caller's thread
            self._problem = problem

    def _is_done(self, act: Callable[..., object], *data: bytes) -> bool:
        try:
            act(*data)
        except self._ended:
            return False
        return True


@dataclass(frozen=True, slots=True)
class ProgramStreams:
    """Input and output handlers of a program.

    The thread of the call runs the handlers, one at a time. ``timeout``: seconds without data in either direction. ``over``
    returns True when no more output is needed, even if the program is still running; ``node_label`` names it in errors.
    """

    on_stdout: OnBytes
    on_stderr: OnBytes
    stdin: Iterable[bytes] = ()
    timeout: float | None = None
    over: Callable[[], bool] = lambda: False
    node_label: str = "a program on this machine"


@contextlib.contextmanager
def defer_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, while a program starts."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted.is_set():
            raise KeyboardInterrupt


class ProgramRunner:
    """Run programs in sessions of their own, to kill each with its descendants."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closings = 0

    def run(
        self, argv: Sequence[str], streams: ProgramStreams, environ: Mapping[str, str] | None = None
    ) -> int:
        """Run a program; exit code, negative for a signal; killed on any error."""
        process: subprocess.Popen[bytes] | None = None
        try:
            with defer_interrupt():
                process = self._start(argv, environ)
            return _exchange(process, streams)
        except BaseException:
            if process is not None:
                kill(process)
            raise
        finally:
            if process is not None:
                with self._lock:
                    self._running.discard(process)
                for stream in (process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()

    def _start(
        self, argv: Sequence[str], environ: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        closings = self._closings
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=environ,
            )
        except OSError as error:
            raise NodeUnreachable(f"cannot start {argv[0]}: {error.strerror}") from error
        with self._lock:
            self._running.add(process)
            if self._closings != closings:  # closed while the program started
                kill(process)
        return process

    def close(self) -> None:
        """Kill all running programs."""
        with self._lock:
            self._closings += 1
            running = list(self._running)
        for process in running:
            kill(process)


class _InputPipe:
    """A program's input. Only the holder of the lock writes or closes, as a closed descriptor is reused at once."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Write all data; BrokenPipeError if the program has closed its input, or ``close`` was called."""
        with self._lock:
            if self._stream.closed:
                raise BrokenPipeError
            try:
                self._stream.write(data)
                self._stream.flush()
            except BrokenPipeError:  # ``close`` may have given up waiting
                with contextlib.suppress(BrokenPipeError):
                    self._stream.close()
                raise

    def close(self, wait: float = -1) -> None:
        """Close, unless a write blocks for ``wait`` seconds: then nothing reads, not even the end."""
        if self._lock.acquire(timeout=wait):
            with contextlib.suppress(BrokenPipeError):
                self._stream.close()
            self._lock.release()


def _exchange(process: subprocess.Popen[bytes], streams: ProgramStreams) -> int:
    """Exchange data until the program has ended and its output was read; return the exit code."""
    assert process.stdin is not None  # noqa: S101 - all are pipes
    pipe = _InputPipe(process.stdin)
    sender = InputSender(streams.stdin, pipe.write, pipe.close, (BrokenPipeError,))
    active = True
    with selectors.DefaultSelector() as selector:
        for stream, on_bytes in (
            (process.stdout, streams.on_stdout),
            (process.stderr, streams.on_stderr),
        ):
            assert stream is not None  # noqa: S101
            selector.register(stream, selectors.EVENT_READ, on_bytes)
        while selector.get_map() and not streams.over():
            ended = process.poll() is not None
            wait = sender.wait_seconds(active, streams.timeout, streams.node_label)
            ready = selector.select(_DRAIN_SECONDS if ended else wait)
            for key, _ in ready:
                if data := os.read(key.fd, _PIECE_BYTES):
                    if len(data) == _FULL_PIPE:
                        _enlarge(key.fd)
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)
            if ended and not ready:
                break  # another process holds the streams open
            active = bool(ready)
    if streams.over():
        kill(process)
    pipe.close(_DRAIN_SECONDS)
    try:
        return process.wait(streams.timeout)
    except subprocess.TimeoutExpired:
        raise NodeUnreachable(f"{streams.node_label} closed its output and still runs") from None


def _enlarge(pipe: int) -> None:
    """Let a pipe that was full hold what one read takes, if the user may have more memory in pipes: pipe(7)."""
    import fcntl

    from trainctl.base.system.syscalls import keep_freed_memory

    keep_freed_memory()
    with contextlib.suppress(OSError, AttributeError):  # Linux has it
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 2 * _PIECE_BYTES)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with the descendants in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        process.wait()
