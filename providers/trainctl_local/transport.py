"""Running programs on this machine as if it were a node."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from trainctl.errors import NodeUnreachable
from trainctl.spi.transport import Output, Transport

_READ_BYTES = 2**18
_DRAIN_SECONDS = 0.2
_POLL_SECONDS = 0.5


class LocalTransport:
    """Each program is a process group of its own, so that it can be ended with everything it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closings = 0

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> Output:
        """See Transport."""
        closings = self._closings
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise NodeUnreachable(f"{argv[0]} can't be started: {error.strerror}") from error
        with self._lock:
            self._running.add(process)
            if self._closings != closings:  # closed while the program was being started
                _kill(process)
        try:
            with process:
                return self._hold(process, _Conversation(process, stdin, on_stdout, timeout))
        finally:
            with self._lock:
                self._running.discard(process)

    def _hold(self, process: subprocess.Popen[bytes], conversation: _Conversation) -> Output:
        """Whatever goes wrong, Ctrl-C included, nothing of the program is left running."""
        try:
            return conversation.hold()
        except BaseException:
            _kill(process)
            raise

    @contextlib.contextmanager
    def expose(self, port: int) -> Iterator[int]:
        """See Transport. It is the same loopback."""
        yield port

    def close(self) -> None:
        """End what is still running."""
        with self._lock:
            self._closings += 1
            left = list(self._running)
        for process in left:
            _kill(process)


class _Conversation:
    """One program's three streams, served in one thread, so that none can wait for another."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: Iterable[bytes],
        on_stdout: Callable[[bytes], None] | None,
        timeout: float | None,
    ) -> None:
        assert process.stdin is not None  # noqa: S101 - they were asked for
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self._process = process
        self._streams = (process.stdin, process.stdout, process.stderr)
        self._input: Iterator[bytes] = iter(stdin)
        self._pending = memoryview(b"")
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._on_stdout = on_stdout or self._stdout.extend
        self._timeout = timeout
        self._heard = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._open: set[object] = set(self._streams)

    def hold(self) -> Output:
        """Serve the streams until the program has ended and what it said was read."""
        stdin, stdout, stderr = self._streams
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
        self._selector.register(stdin, selectors.EVENT_WRITE, self._send)
        self._selector.register(stdout, selectors.EVENT_READ, self._receive)
        self._selector.register(stderr, selectors.EVENT_READ, self._receive_error)
        with self._selector:
            while self._wanted(stdout) or self._wanted(stderr):
                ended = self._process.poll() is not None
                ready = self._selector.select(_DRAIN_SECONDS if ended else self._wait_seconds())
                for key, _ in ready:
                    key.data()
                if ended and not any(key.fileobj is not stdin for key, _ in ready):
                    break  # whoever holds the streams open now is not the program
                self._check_silence(bool(ready))
            if self._wanted(stdin):
                self._finish(stdin)
        return Output(self._await_end(), bytes(self._stdout), bytes(self._stderr))

    def _wanted(self, stream: object) -> bool:
        return stream in self._open

    def _wait_seconds(self) -> float:
        return _POLL_SECONDS if self._timeout is None else min(_POLL_SECONDS, self._timeout)

    def _check_silence(self, heard: bool) -> None:
        now = time.monotonic()
        if heard:
            self._heard = now
        elif self._timeout is not None and now - self._heard >= self._timeout:
            raise NodeUnreachable(
                f"a program on this machine was silent for {self._timeout:g} s",
                f"Process {self._process.pid} and what it started were ended.",
            )

    def _await_end(self) -> int:
        """A program that closed its streams may go on; it is given the same time as one that is silent."""
        try:
            return self._process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            self._check_silence(heard=False)
            raise NodeUnreachable(
                "a program on this machine closed its output and goes on"
            ) from None

    def _send(self) -> None:
        stdin = self._streams[0]
        try:
            while not self._pending:
                self._pending = memoryview(next(self._input))
            self._pending = self._pending[os.write(stdin.fileno(), self._pending) :]
        except StopIteration:
            self._finish(stdin)
        except BrokenPipeError:  # it doesn't want to read: its answer counts
            self._finish(stdin)
        except BlockingIOError:
            return

    def _receive(self) -> None:
        self._take(self._streams[1], self._on_stdout)

    def _receive_error(self) -> None:
        self._take(self._streams[2], self._stderr.extend)

    def _take(self, stream: object, on_bytes: Callable[[bytes], object]) -> None:
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
        self._selector.unregister(stream)  # type: ignore[arg-type]
        with contextlib.suppress(BrokenPipeError):
            stream.close()  # type: ignore[attr-defined]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        process.wait()


_: type[Transport] = LocalTransport
