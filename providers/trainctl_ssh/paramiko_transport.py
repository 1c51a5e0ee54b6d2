"""Commands over paramiko's channels: the same marks and the same care as over the ssh program."""

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
from typing import TYPE_CHECKING

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
    """Commands over a link that others may use as well; closing it ends its own commands only."""

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
        """See Transport."""
        token = secrets.token_hex(16)
        stdout, stderr = bytearray(), bytearray()
        out = shell.MarkedOutput(token, on_stdout or stdout.extend)
        err = shell.MarkedOutput(token, stderr.extend)
        channel, master = self._connection.channel()
        with self._lock:
            self._running.add(channel)
        talk = _ChannelExchange(
            channel, chain((shell.call_line(token, list(argv), master),), stdin), timeout
        )
        try:
            talk.exchange(out, err, f"{self._connection.who}: a program")
        except BaseException:
            self._connection.end(out.began)
            raise
        finally:
            with self._lock:
                closed = channel not in self._running
                self._running.discard(channel)
            channel.close()
        if out.ended is not None:
            return CommandOutput(int(out.ended), bytes(stdout), bytes(stderr))
        self._connection.end(out.began)
        if closed:
            return CommandOutput(-signal.SIGKILL, bytes(stdout), bytes(stderr))
        raise self._connection.lost((err.before + bytes(stderr)).decode(errors="replace"))

    def expose(self, port: int) -> AbstractContextManager[int]:
        """See Transport."""
        return self._connection.expose(port)

    def close(self) -> None:
        """End what is still running."""
        with self._lock:
            left, self._running = self._running, set()
        for channel in left:
            channel.close()


class _ChannelExchange:
    """One channel: a thread sends, and the caller's hears, so that neither waits for the other."""

    def __init__(
        self, channel: paramiko.Channel, stdin: Iterable[bytes], timeout: float | None
    ) -> None:
        self._channel = channel
        self._stdin = stdin
        self._timeout = timeout
        self._moved = time.monotonic()
        self._problem: BaseException | None = None

    def exchange(self, out: shell.MarkedOutput, err: shell.MarkedOutput, who: str) -> None:
        """Until both streams had their second mark, or the channel ends."""
        threading.Thread(target=self._send, daemon=True).start()
        channel = self._channel
        while out.ended is None or err.ended is None:
            over = channel.closed or channel.eof_received
            heard = self._hear(channel.recv_ready, channel.recv, out.feed)
            heard |= self._hear(channel.recv_stderr_ready, channel.recv_stderr, err.feed)
            if self._problem is not None:
                raise self._problem
            if heard:
                self._moved = time.monotonic()
            elif over:
                return
            else:
                self._wait(who)

    def _hear(self, ready: Callable[[], bool], read: Callable[[int], bytes], on: OnBytes) -> bool:
        if not ready():
            return False
        on(read(_READ_BYTES))
        return True

    def _wait(self, who: str) -> None:
        left = _POLL_SECONDS
        if self._timeout is not None:
            silent = time.monotonic() - self._moved
            if silent >= self._timeout:
                raise NodeTimeout(
                    f"{who} timed out after {self._timeout:g} s",
                    "The command and its processes were stopped.",
                )
            left = min(left, self._timeout - silent)
        with contextlib.suppress(OSError, ValueError):  # closed in between
            select.select([self._channel], [], [], left)

    def _send(self) -> None:
        try:
            for data in self._stdin:
                self._channel.sendall(data)
                self._moved = time.monotonic()
            self._channel.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            return  # it doesn't want to read: its answer counts
        except BaseException as problem:  # noqa: BLE001 - the caller's own, raised there
            self._problem = problem


def read_greeting(channel: paramiko.Channel, token: str, seconds: float) -> int | None:
    """The number of the far end's process; None if it does not say one."""
    cut = shell.MarkedOutput(token, lambda _: None)
    channel.settimeout(seconds + _GREETING_SECONDS)
    while cut.began is None:
        data = channel.recv(_READ_BYTES)
        if not data:
            return None
        cut.feed(data)
    channel.settimeout(None)
    return int(cut.began)


def relay(channel: paramiko.Channel, port: int) -> None:
    """Carry bytes between a channel and a port of this machine until either side ends."""
    with (
        contextlib.suppress(OSError, EOFError, paramiko.SSHException),
        contextlib.closing(channel),
        socket.create_connection(("127.0.0.1", port)) as here,
    ):
        ends: dict[_End, _End] = {channel: here, here: channel}
        while ends:
            for end in select.select(list(ends), [], [])[0]:
                data = end.recv(_READ_BYTES)
                if data:
                    ends[end].sendall(data)
                else:
                    _end_write(ends.pop(end))


def _end_write(end: _End) -> None:
    if isinstance(end, paramiko.Channel):
        end.shutdown_write()
    else:
        end.shutdown(socket.SHUT_WR)


_: type[Transport] = ParamikoTransport
