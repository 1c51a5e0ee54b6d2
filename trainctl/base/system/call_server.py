"""Serve many calls from one process, each in a fork.

The frames are in ``trainctl/remote/DESIGN.md``, "Sessions". One thread, so that forking is safe.
"""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import signal
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.protocol.wire import FrameDecoder, encode_frame
from trainctl.base.system.syscalls import PR_SET_PDEATHSIG, close_other_descriptors, prctl

_READ_BYTES = 2**18
LoadFn = Callable[[str], object]


def serve(once: Callable[[], int], load: LoadFn) -> int:
    """Serve the calls on standard input until it ends; return the exit code.

    ``once`` runs one call, of the method in ``sys.argv[-1]``. ``load`` imports the code of a method, once for all forks.
    """
    method = _CallServer(load).serve()
    if method is None:
        os._exit(0)  # skip cleanup at exit, which takes as long as a call
    sys.argv[-1] = method
    code = 1
    try:
        code = once()
    except BaseException:  # noqa: BLE001 - as at the end of a program
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _ForkedCall(NamedTuple):
    number: int
    streams: Dict[int, int]
    """By descriptor the stream read from it: 1, output, or 2, errors."""


class _CallServer:
    def __init__(self, load: LoadFn) -> None:
        self._load = load
        self._pid = os.getpid()
        self._calls: Dict[int, _ForkedCall] = {}
        self._outputs = FrameDecoder()
        self._input_ended = False
        self._selector = selectors.PollSelector()  # without a descriptor that forks would share

    def serve(self) -> Optional[str]:
        """Return None when the client has disconnected; in a fork the method to run."""
        self._selector.register(0, selectors.EVENT_READ, self._listen)
        child_ended, writer = os.pipe()  # readable when a child has ended
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._selector.register(child_ended, selectors.EVENT_READ, self._reap)
        while not self._input_ended:
            for key, _ in self._selector.select():
                method: Optional[str] = key.data(key.fd)
                if method is not None:
                    return method
        for pid in self._calls:
            _kill(pid)
        return None

    def _listen(self, descriptor: int) -> Optional[str]:
        data = os.read(descriptor, _READ_BYTES)
        self._input_ended = not data
        for head, request in self._outputs.feed(data):
            if "method" not in head:
                self._end(head["call"])
            elif self._start_call(head["call"], head["method"], request) is not None:
                return str(head["method"])
        return None

    def _start_call(self, number: int, method: str, request: bytes) -> Optional[str]:
        """Fork; return the method in the fork, None in this process."""
        with contextlib.suppress(ImportError):  # the call itself reports it
            self._load(method)
        pipes: List[Tuple[int, int]] = []
        try:
            pipes += [os.pipe()]
            pipes += [os.pipe()]
            pid = os.fork()
        except OSError as error:
            for descriptor in (end for pipe in pipes for end in pipe):
                os.close(descriptor)
            self._write_frame({"call": number, "stream": 2}, f"cannot fork: {error}\n".encode())
            self._write_frame({"call": number, "exit": 1})
            return None
        if pid == 0:
            # own session, own streams, killed with the server
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDWR)
            for target, source in enumerate((null, pipes[0][1], pipes[1][1])):
                os.dup2(source, target)
            close_other_descriptors()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:
                os._exit(1)
            sys.stdin = io.TextIOWrapper(io.BytesIO(request))
            return method
        streams = {}
        for stream, (reader, writer) in enumerate(pipes, 1):
            os.close(writer)
            os.set_blocking(reader, False)
            streams[reader] = stream
            self._selector.register(reader, selectors.EVENT_READ, self._forward_output)
        self._calls[pid] = _ForkedCall(number, streams)
        return None

    def _end(self, number: int) -> None:
        for pid, call in self._calls.items():
            if call.number == number:
                _kill(pid)

    def _forward_output(self, descriptor: int) -> None:
        """Forward output of a call; close the stream at its end."""
        call = next((call for call in self._calls.values() if descriptor in call.streams), None)
        if call is None:  # it has ended meanwhile
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, _READ_BYTES)
            if data:
                self._write_frame({"call": call.number, "stream": call.streams[descriptor]}, data)
            else:
                self._close(call, descriptor)

    def _reap(self, descriptor: int) -> None:
        """Report calls that have ended, even if other processes hold their streams open."""
        os.read(descriptor, _READ_BYTES)
        for pid in list(self._calls):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                call = self._calls[pid]
                for stream in list(call.streams):
                    self._drain(call, stream)
                del self._calls[pid]
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self._write_frame({"call": call.number, "exit": code})

    def _drain(self, call: _ForkedCall, descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for data in iter(lambda: os.read(descriptor, _READ_BYTES), b""):
                self._write_frame({"call": call.number, "stream": call.streams[descriptor]}, data)
        self._close(call, descriptor)

    def _close(self, call: _ForkedCall, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        del call.streams[descriptor]

    def _write_frame(self, head: Mapping[str, Any], data: bytes = b"") -> None:
        left = memoryview(encode_frame(head, data))
        try:
            while left:
                left = left[os.write(1, left) :]
        except OSError:  # the client has disconnected
            self._input_ended = True


def _kill(pid: int) -> None:
    """Kill a call and its children; it may not have its own process group yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
