"""Programs over paramiko's channels, by the line protocol of ``shell``."""

from __future__ import annotations

import contextlib
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import paramiko

from trainctl.errors import NodeTimeout
from trainctl.plugin_api.provider import CommandOutput, Transport
from trainctl.remote.processes import OnBytes
from trainctl_ssh import shell

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trainctl_ssh.paramiko_connection import ParamikoConnection

_End = paramiko.Channel | socket.socket
_READ_BYTES = 2**16
_POLL_SECONDS = 0.5
_GREETING_SECONDS = 30


class ParamikoTransport:
    """Programs over a shared connection; closing it kills its own programs only."""

    def __init__(self, connection: ParamikoConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._running: set[paramiko.Channel] = set()

    def run(
        self,
        argv: Iterable[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        token = secrets.token_hex(16)
        stdout, stderr = bytearray(), bytearray()
        out = shell.MarkedOutput(token, on_stdout or stdout.extend)
        err = shell.MarkedOutput(token, stderr.extend)
        channel, master = self._connection.channel()
        with self._lock:
            self._running.add(channel)
        exchange = _ChannelExchange(
            channel, chain((shell.call_line(token, list(argv), master),), stdin), timeout
        )
        try:
            exchange.exchange(out, err, f"{self._connection.node_label}: a program")
        except BaseException:
            self._connection.kill_group(out.began)
            raise
        finally:
            with self._lock:
                closed = channel not in self._running
                self._running.discard(channel)
            channel.close()
        if out.ended is not None:
            return CommandOutput(int(out.ended), bytes(stdout), bytes(stderr))
        self._connection.kill_group(out.began)
        if closed:
            return CommandOutput(-signal.SIGKILL, bytes(stdout), bytes(stderr))
        raise self._connection.lost((err.before + bytes(stderr)).decode(errors="replace"))

    def expose(self, port: int) -> AbstractContextManager[int]:
        return self._connection.expose(port)

    def close(self) -> None:
        """Kill programs that are still running."""
        with self._lock:
            left, self._running = self._running, set()
        for channel in left:
            channel.close()


class _ChannelExchange:
    """Input and output of one channel, sent and received by two threads."""

    def __init__(
        self, channel: paramiko.Channel, stdin: Iterable[bytes], timeout: float | None
    ) -> None:
        self._channel = channel
        self._stdin = stdin
        self._timeout = timeout
        self._active_at = time.monotonic()
        self._problem: BaseException | None = None

    def exchange(self, out: shell.MarkedOutput, err: shell.MarkedOutput, node_label: str) -> None:
        """Exchange until both streams had their second mark, or the channel ends."""
        threading.Thread(target=self._send, daemon=True).start()
        channel = self._channel
        while out.ended is None or err.ended is None:
            is_closed = channel.closed or channel.eof_received
            received = self._receive(channel.recv_ready, channel.recv, out.feed)
            received |= self._receive(channel.recv_stderr_ready, channel.recv_stderr, err.feed)
            if self._problem is not None:
                raise self._problem
            if received:
                self._active_at = time.monotonic()
            elif is_closed:
                return
            else:
                self._wait(node_label)

    def _receive(
        self, ready: Callable[[], bool], read: Callable[[int], bytes], on: OnBytes
    ) -> bool:
        if not ready():
            return False
        on(read(_READ_BYTES))
        return True

    def _wait(self, node_label: str) -> None:
        left = _POLL_SECONDS
        if self._timeout is not None:
            idle = time.monotonic() - self._active_at
            if idle >= self._timeout:
                raise NodeTimeout(
                    f"{node_label} timed out after {self._timeout:g} s",
                    "The command and its processes were stopped.",
                )
            left = min(left, self._timeout - idle)
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            select.select([self._channel], [], [], left)

    def _send(self) -> None:
        try:
            for data in self._stdin:
                self._channel.sendall(data)
                self._active_at = time.monotonic()
            end_input(self._channel)
        except (OSError, EOFError, paramiko.SSHException):
            return  # the program ignores its input; its output counts
        except BaseException as problem:  # noqa: BLE001 - raised in the caller's thread
            self._problem = problem


def read_greeting(channel: paramiko.Channel, token: str, seconds: float) -> int | None:
    """Return the PID of the remote shell; None if the channel ends first."""
    output = shell.MarkedOutput(token, lambda _: None)
    channel.settimeout(seconds + _GREETING_SECONDS)
    while output.began is None:
        data = channel.recv(_READ_BYTES)
        if not data:
            return None
        output.feed(data)
    channel.settimeout(None)
    return int(output.began)


def relay(channel: paramiko.Channel, port: int) -> None:
    """Copy bytes between a channel and a local port until both sides end."""
    with (
        contextlib.suppress(OSError, EOFError, paramiko.SSHException),
        contextlib.closing(channel),
        socket.create_connection(("127.0.0.1", port)) as sock,
    ):
        ends: dict[_End, _End] = {channel: sock, sock: channel}
        while ends:
            for end in select.select(list(ends), [], [])[0]:
                data = end.recv(_READ_BYTES)
                if data:
                    ends[end].sendall(data)
                else:
                    _end_write(ends.pop(end))


def end_input(channel: Any) -> None:
    """Send EOF, and never after CLOSE, upon which sshd ends the connection.

    ``shutdown_write`` of paramiko 5.1 sends it after it released the lock, when another thread may have sent CLOSE.
    """
    with channel.lock:
        message = channel._send_eof()
        if message is not None:
            channel.transport._send_user_message(message)


def _end_write(end: _End) -> None:
    if isinstance(end, paramiko.Channel):
        end_input(end)
    else:
        end.shutdown(socket.SHUT_WR)


_: type[Transport] = ParamikoTransport
