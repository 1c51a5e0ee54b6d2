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
from contextlib import contextmanager
from dataclasses import dataclass

from trainctl.errors import NodeTimeout, NodeUnreachable


class InputFeed:
    """Input of a running program: ``put`` from any thread, iterated by one reader.

    Iteration blocks; ``fileno`` becomes readable when it would not, so that a single-threaded transport can wait for
    input and output at once.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader, self._writer = os.pipe()
        self._closed = False
        self._lead: Iterator[bytes] = iter(())
        self._first: bytes | None = None
        self.began: float | None = None
        """Time of the first read in monotonic seconds: the program has been started by then."""

    def lead(self, buffers: Iterable[bytes]) -> None:
        """Send these buffers first; call before reading starts, they must not block."""
        self._lead = iter(buffers)
        self._first = next(self._lead, None)
        if self._first is not None:
            os.write(self._writer, b".")

    def put(self, data: bytes) -> None:
        """Send data; ignored after the reader has finished."""
        if data:
            self._add(data)

    def close(self) -> None:
        """Signal the end of input. Idempotent."""
        if not self._closed:
            self._closed = True
            self._add(None)

    def fileno(self) -> int:
        """Descriptor that is readable if there is data or the end."""
        return self._reader

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.began = self.began or time.monotonic()
        if self._first is not None:
            data, self._first = self._first, next(self._lead, None)
            if self._first is None:  # the pipe's byte stood for all leading buffers
                os.read(self._reader, 1)
            return data
        os.read(self._reader, 1)
        item = self._items.get()
        if item is None:
            self.close()
            raise StopIteration
        return item

    def _add(self, data: bytes | None) -> None:
        self._items.put(data)
        os.write(self._writer, b".")

    def __del__(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


_READ_BYTES = 2**18
_DRAIN_SECONDS = 0.2
_POLL_SECONDS = 0.5
OnBytes = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class ProgramStreams:
    """Input and output handlers of a program.

    ``head`` is sent before ``stdin``, which may be an InputFeed, or an iterable that doesn't block. ``timeout``: seconds
    without data in either direction. ``over`` returns True when no more output is needed, even if the program is still
    running; ``node_label`` names it in errors.
    """

    on_stdout: OnBytes
    on_stderr: OnBytes
    stdin: Iterable[bytes] = ()
    head: bytes = b""
    timeout: float | None = None
    over: Callable[[], bool] = lambda: False
    node_label: str = "a program on this machine"


@contextmanager
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
            return _run_streams(process, streams)
        except BaseException:
            if process is not None:
                kill(process)
            raise
        finally:
            if process is not None:
                with process, self._lock:
                    self._running.discard(process)

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


def _run_streams(process: subprocess.Popen[bytes], streams: ProgramStreams) -> int:
    pump = _StreamPump(process, streams)
    pump.run()
    if streams.over():
        kill(process)
    return pump.wait()


class _StreamPump:
    """Serve a program's three streams in one thread, so that none blocks another."""

    def __init__(self, process: subprocess.Popen[bytes], streams: ProgramStreams) -> None:
        assert process.stdin is not None  # noqa: S101 - all are pipes
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self._process = process
        self._pipes = (process.stdin, process.stdout, process.stderr)
        self._streams = streams
        self._input: Iterator[bytes] = iter(streams.stdin)
        self._pending = memoryview(streams.head)
        self._last_activity = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._open: set[object] = set(self._pipes)

    def run(self) -> None:
        """Serve the streams until the program has ended and its output was read."""
        stdin, stdout, stderr = self._pipes
        for stream in self._pipes:
            os.set_blocking(stream.fileno(), False)
        if self._pending or not isinstance(self._input, InputFeed):
            self._selector.register(stdin, selectors.EVENT_WRITE, self._send)
        else:
            self._selector.register(self._input, selectors.EVENT_READ, self._resume_sending)
        self._selector.register(stdout, selectors.EVENT_READ, self._receive)
        self._selector.register(stderr, selectors.EVENT_READ, self._receive_error)
        with self._selector:
            while (self._is_open(stdout) or self._is_open(stderr)) and not self._streams.over():
                ended = self._process.poll() is not None
                ready = self._selector.select(_DRAIN_SECONDS if ended else self._wait_seconds())
                for key, _ in ready:
                    key.data()
                if ended and not any(key.fileobj in (stdout, stderr) for key, _ in ready):
                    break  # another process holds the streams open
                self._check_silence(bool(ready))
            if self._is_open(stdin):
                self._finish(stdin)

    def _is_open(self, stream: object) -> bool:
        return stream in self._open

    def _wait_seconds(self) -> float:
        timeout = self._streams.timeout
        return _POLL_SECONDS if timeout is None else min(_POLL_SECONDS, timeout)

    def _check_silence(self, active: bool) -> None:
        now = time.monotonic()
        timeout = self._streams.timeout
        if active:
            self._last_activity = now
        elif timeout is not None and now - self._last_activity >= timeout:
            raise NodeTimeout(
                f"{self._streams.node_label} timed out after {timeout:g} s",
                "The command and its processes were stopped.",
            )

    def wait(self) -> int:
        """Wait for the exit code. A program that closed its streams has the same timeout."""
        try:
            return self._process.wait(self._streams.timeout)
        except subprocess.TimeoutExpired:
            self._check_silence(active=False)
            raise NodeUnreachable(
                f"{self._streams.node_label} closed its output and still runs"
            ) from None

    def _send(self) -> None:
        stdin = self._pipes[0]
        try:
            while not self._pending:
                self._pending = memoryview(next(self._input))
            self._pending = self._pending[os.write(stdin.fileno(), self._pending) :]
        except StopIteration:
            self._finish(stdin)
        except BrokenPipeError:  # it stopped reading; its response counts
            self._finish(stdin)
        except BlockingIOError:
            return
        if not self._pending and isinstance(self._input, InputFeed) and self._is_open(stdin):
            self._selector.unregister(stdin)
            self._selector.register(self._input, selectors.EVENT_READ, self._resume_sending)

    def _resume_sending(self) -> None:
        """Continue when the feed has more data."""
        assert isinstance(self._input, InputFeed)  # noqa: S101
        self._selector.unregister(self._input)
        self._selector.register(self._pipes[0], selectors.EVENT_WRITE, self._send)

    def _receive(self) -> None:
        self._read(self._pipes[1], self._streams.on_stdout)

    def _receive_error(self) -> None:
        self._read(self._pipes[2], self._streams.on_stderr)

    def _read(self, stream: object, on_bytes: OnBytes) -> None:
        assert hasattr(stream, "fileno")  # noqa: S101
        try:
            data = os.read(stream.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            on_bytes(data)
        else:
            self._finish(stream)

    def _finish(self, stream: object) -> None:
        self._open.discard(stream)
        with contextlib.suppress(KeyError):  # not registered while waiting for input
            self._selector.unregister(stream)  # type: ignore[arg-type]
        with contextlib.suppress(BrokenPipeError):
            stream.close()  # type: ignore[attr-defined]


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with the descendants in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        process.wait()
