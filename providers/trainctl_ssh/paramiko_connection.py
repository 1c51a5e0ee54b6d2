"""Connection to a host by paramiko, without an ssh program; see DESIGN.md."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import paramiko

from trainctl.errors import NodeUnreachable
from trainctl.remote.processes import InputSender, ProgramStreams
from trainctl_ssh import shell
from trainctl_ssh.connection import (
    PIN,
    SshConnection,
    SshHost,
    SshTransport,
    append_known_host,
    fingerprint,
    known_hosts_files,
    login_error,
)
from trainctl_ssh.ssh_config import read_ssh_config

_End = paramiko.Channel | socket.socket
_READ_BYTES = 2**16
_ERRORS = (paramiko.SSHException, paramiko.hostkeys.InvalidHostKey, OSError, EOFError)
_ALIVE_SECONDS = 5  # as ServerAliveInterval of the ssh program
_CUT_MILLISECONDS = 15_000  # as its ServerAliveCountMax times the interval
_USER_TIMEOUT = 18
"""TCP_USER_TIMEOUT of linux/tcp.h: paramiko ignores unanswered keepalives, so the kernel detects them."""


class ParamikoConnection(SshConnection, paramiko.MissingHostKeyPolicy):
    """A connection by paramiko, with another one when it is full."""

    transport = SshTransport
    _keeper: paramiko.Channel

    def __init__(self, host: SshHost) -> None:
        super().__init__(host)
        self._lock = threading.Lock()
        self._clients: list[paramiko.SSHClient] = []
        self._ports: dict[int, int] = {}

    def open(self) -> None:
        self._clients = [self._log_in()]
        try:
            self._keeper = self._open_session()
            self._keeper.set_combine_stderr(True)
            printed = self.start_keeper(self._keeper, lambda: self._keeper.recv(_READ_BYTES))
        except _ERRORS as error:
            raise self.host.lost_error(str(error).encode()) from None
        if not self.pid:
            raise login_error(self.host.node_label, printed)

    def is_alive(self) -> bool:
        transport = self._clients[0].get_transport()
        return transport is not None and transport.is_active()

    def send(self, line: bytes) -> None:
        self._keeper.sendall(line)

    def exchange(self, streams: ProgramStreams) -> None:
        """Exchange data until the streams are over or the channel has ended."""
        try:
            with self._lock:
                channel = self._open_channel()
        except _ERRORS as error:
            raise self.host.lost_error(str(error).encode()) from None
        sender = InputSender(streams.stdin, channel.sendall, lambda: end_input(channel), _ERRORS)
        try:
            while not streams.over():
                is_closed = channel.closed or channel.eof_received
                received = False
                if channel.recv_ready():
                    streams.on_stdout(channel.recv(_READ_BYTES))
                    received = True
                if channel.recv_stderr_ready():
                    streams.on_stderr(channel.recv_stderr(_READ_BYTES))
                    received = True
                wait = sender.wait_seconds(received, streams.timeout, streams.node_label)
                if not received:
                    if is_closed:
                        return
                    with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                        select.select([channel], [], [], wait)
        finally:
            channel.close()

    def _open_channel(self) -> paramiko.Channel:
        """Open a channel, on a new connection if this one is full (ten sessions)."""
        try:
            return self._open_session()
        except paramiko.ChannelException:
            self._clients.append(self._log_in())
        except paramiko.SSHException:
            pass  # only that channel was closed, before any use
        return self._open_session()

    def _open_session(self) -> paramiko.Channel:
        transport = _transport(self._clients[-1])
        channel = transport.open_session(timeout=self.host.login.connect_timeout)
        channel.exec_command(shell.COMMAND)
        return channel

    def lost(self, call: shell.ShellCall) -> NodeUnreachable:
        return self.host.lost_error(call.messages)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        with self._lock:
            try:
                transport = _transport(self._clients[0])
                remote_port = transport.request_port_forward("127.0.0.1", 0, self._serve)
            except _ERRORS as error:
                raise self.host.forwarding_error(str(error)) from None
            self._ports[remote_port] = port
        try:
            yield remote_port
        finally:
            self._ports.pop(remote_port, None)
            with contextlib.suppress(*_ERRORS):
                # cancel_port_forward would remove the handler of other ports, too
                transport.global_request("cancel-tcpip-forward", ("127.0.0.1", remote_port))

    def _serve(self, channel: paramiko.Channel, origin: Any, server: tuple[str, int]) -> None:
        port = self._ports.get(server[1])
        if port is None:
            channel.close()
            return
        threading.Thread(target=relay, args=(channel, port), daemon=True).start()

    def _log_in(self) -> paramiko.SSHClient:
        login = self.host.login
        config = read_ssh_config(Path("~/.ssh/config").expanduser(), login)
        name, port = config["hostname"], int(config.get("port", 22))
        lookup, known = (name, port), [*_known_hosts(config), Path("/etc/ssh/ssh_known_hosts")]
        if login.host_key:
            lookup, known = (PIN, 22), [self.host.pin]
        files = [login.identity_file]
        if not login.identity_file:  # ssh ignores missing ones, too
            files = [
                file for file in config.get("identityfile", ()) if Path(file).expanduser().exists()
            ]
        seconds = login.connect_timeout
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(self)
        try:
            for path in known:
                if path.exists():
                    client.load_system_host_keys(str(path))
            client.connect(
                *lookup,
                config.get("user"),
                allow_agent=not login.identity_only,
                look_for_keys=not login.identity_only,
                key_filename=cast("Any", [str(Path(file).expanduser()) for file in files]),
                timeout=seconds,
                banner_timeout=seconds,
                auth_timeout=max(seconds, 30),
                sock=_socket(name, port, seconds),
                transport_factory=cast("Any", _KeyTransport),
            )
        except BaseException as error:
            client.close()
            if isinstance(error, _ERRORS):
                raise self._refusal(
                    error, f"Remove the old key of {name} from {known[0]}."
                ) from None
            raise
        _transport(client).set_keepalive(_ALIVE_SECONDS)
        return client

    def _refusal(self, error: Exception, removal: str) -> NodeUnreachable:
        text = str(error)
        if isinstance(error, paramiko.BadHostKeyException):
            return self.host.key_changed_error(fingerprint(error.key.asbytes()), removal)
        if isinstance(error, paramiko.AuthenticationException):
            text = f"Permission denied ({text})"
        elif isinstance(error, socket.gaierror):
            text = f"Could not resolve hostname: {text}"
        return login_error(self.host.node_label, text.encode())

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Raise NodeUnreachable unless the user confirms the key of an unknown host."""
        shown = fingerprint(key.asbytes())
        if self.host.login.host_key:
            raise self.host.key_changed_error(shown, "")
        self.host.confirm_key(shown)
        config = read_ssh_config(Path("~/.ssh/config").expanduser(), self.host.login)
        append_known_host(
            f"{hostname} {key.get_name()} {key.get_base64()}", _known_hosts(config)[0]
        )


class _KeyTransport(paramiko.Transport):
    """Refuse a second factor, for which paramiko would read standard input."""

    def auth_interactive_dumb(
        self, username: str, handler: object = None, submethods: str = ""
    ) -> list[str]:
        """Raise AuthenticationException."""
        raise paramiko.AuthenticationException("The host asks for more than a key.")


def _known_hosts(config: Mapping[str, Any]) -> list[Path]:
    return known_hosts_files(str(config.get("userknownhostsfile", "~/.ssh/known_hosts")))


def _socket(name: str, port: int, seconds: float) -> socket.socket:
    sock = socket.create_connection((name, port), seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # unsupported: losses are detected later
        sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, _CUT_MILLISECONDS)
    return sock


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    transport = client.get_transport()
    if transport is None:
        raise EOFError("the connection is closed")
    return transport


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
                    continue
                other = ends.pop(end)
                if isinstance(other, paramiko.Channel):
                    end_input(other)
                else:
                    other.shutdown(socket.SHUT_WR)


def end_input(channel: Any) -> None:
    """Send EOF, and never after CLOSE, upon which sshd ends the connection.

    ``shutdown_write`` of paramiko 5.1 sends it after it released the lock, when another thread may have sent CLOSE.
    """
    with channel.lock:
        message = channel._send_eof()
        if message is not None:
            channel.transport._send_user_message(message)
