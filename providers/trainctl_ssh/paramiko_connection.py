"""Connection and transport to a host by paramiko, without an ssh program; see DESIGN.md."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, cast

import paramiko

from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import CommandOutput, Confirm, Transport
from trainctl.remote.processes import InputSender
from trainctl_ssh import shell
from trainctl_ssh.connection import (
    CLOSE_SECONDS,
    CONNECTION_REFUSED,
    DENIED,
    GREETING_SECONDS,
    TIMED_OUT,
    UNKNOWN_HOST,
    SshConnection,
    append_known_host,
    error_for_failure,
    fingerprint,
    key_mismatch_error,
    known_hosts_files,
)
from trainctl_ssh.hosts import SshLogin
from trainctl_ssh.ssh_config import read_ssh_config

_End = paramiko.Channel | socket.socket
_READ_BYTES = 2**16
_ALIVE_SECONDS = 5  # as ServerAliveInterval of the ssh program
_CAUSES = {
    paramiko.AuthenticationException: DENIED,
    socket.gaierror: UNKNOWN_HOST,
    ConnectionRefusedError: CONNECTION_REFUSED,
}
_CUT_MILLISECONDS = 15_000  # as its ServerAliveCountMax times the interval
_USER_TIMEOUT = 18
"""TCP_USER_TIMEOUT of linux/tcp.h: paramiko ignores unanswered keepalives, so the kernel detects them."""


class ParamikoConnection(SshConnection):
    """A connection by paramiko."""

    def __init__(
        self, login: SshLogin, node_label: str, environ: Mapping[str, str], confirm: Confirm
    ) -> None:
        super().__init__(login, node_label, environ, confirm)
        self._clients: list[paramiko.SSHClient] = []
        self._master: paramiko.Channel | None = None
        self._pid = 0
        self._ports: dict[int, int] = {}

    def transport(self) -> ParamikoTransport:
        """Return a transport over this connection."""
        return ParamikoTransport(self)

    def channel(self) -> tuple[paramiko.Channel, int]:
        """Return a channel whose shell waits for a line, and the PID that it depends on."""
        self._ensure(self._is_open, self._connect)
        with self._lock:
            if not self._clients:
                raise self.lost("closed meanwhile")
            try:
                return self._open_channel(), self._pid
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise self.lost(str(error)) from None

    def _open_channel(self) -> paramiko.Channel:
        """Open a channel, on a new connection if this one is full (ten sessions)."""
        try:
            return self._open(self._clients[-1])
        except paramiko.ChannelException:
            self._clients.append(self._client())
        except paramiko.SSHException:
            if not self._alive():
                raise  # otherwise only that channel was closed, before any use
        return self._open(self._clients[-1])

    def kill_group(self, group: str | None) -> None:
        """Kill a process group on the host."""
        master = self._master
        if group and group.isdigit() and master is not None:
            with contextlib.suppress(OSError, paramiko.SSHException):
                master.sendall(f"{group}\n".encode())

    def lost(self, message: str) -> NodeUnreachable:
        """Return the error for a call whose connection was lost."""
        return self._lost_error(message.encode())

    def close(self) -> None:
        """Close the connection, which kills its programs."""
        if not self._lock.acquire(timeout=CLOSE_SECONDS):
            return  # an active attempt, which can't be cancelled, ends with this process
        try:
            clients, self._clients, self._master = self._clients, [], None
        finally:
            self._lock.release()
        for client in clients:
            client.close()

    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        self.channel()[0].close()
        with self._lock:
            transport = _transport(self._clients[0])
            try:
                remote_port = transport.request_port_forward("127.0.0.1", 0, self._serve)
            except (paramiko.SSHException, OSError) as error:
                raise NodeError(
                    f"{self.node_label} does not allow port forwarding",
                    f"{error}\nSet AllowTcpForwarding yes (or remote) for its sshd.",
                    code="ssh-forwarding",
                ) from None
            self._ports[remote_port] = port
        try:
            yield remote_port
        finally:
            self._ports.pop(remote_port, None)
            with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
                # cancel_port_forward would remove the handler of other ports, too
                transport.global_request("cancel-tcpip-forward", ("127.0.0.1", remote_port))

    def _serve(self, channel: paramiko.Channel, origin: Any, server: tuple[str, int]) -> None:
        port = self._ports.get(server[1])
        if port is None:
            channel.close()
            return
        threading.Thread(target=relay, args=(channel, port), daemon=True).start()

    def _alive(self) -> bool:
        transport = self._clients[0].get_transport() if self._clients else None
        return transport is not None and transport.is_active()

    def _is_open(self) -> bool:
        return self._master is not None and self._alive()

    def _connect(self) -> None:
        self.close()
        client = self._client()
        self._clients = [client]
        token = os.urandom(16).hex()
        try:
            master = self._open(client)
            master.sendall(shell.keepalive_line(token))
            output = shell.MarkedOutput(token, lambda _: None)
            master.settimeout(self.login.connect_timeout + GREETING_SECONDS)
            while output.began is None and (data := master.recv(_READ_BYTES)):
                output.feed(data)
            master.settimeout(None)
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise self.lost(str(error)) from None
        if output.began is None:
            self.close()
            raise self._silent_error()
        self._master, self._pid = master, int(output.began)

    def _open(self, client: paramiko.SSHClient) -> paramiko.Channel:
        channel = _transport(client).open_session(timeout=self.login.connect_timeout)
        channel.exec_command(shell.COMMAND)
        return channel

    def _client(self) -> paramiko.SSHClient:
        login = self.login
        config = read_ssh_config(Path("~/.ssh/config").expanduser(), login)
        try:
            return self._log_in(config)
        except paramiko.BadHostKeyException as error:
            raise key_mismatch_error(
                self.node_label,
                fingerprint(error.key.asbytes()),
                fingerprint(error.expected_key.asbytes()),
                f"ssh-keygen -R {login.address}, or correct host_key in the manifest.",
            ) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            cause = next(
                (_CAUSES[kind] for kind in type(error).__mro__ if kind in _CAUSES),
                TIMED_OUT,
            )
            raise error_for_failure(cause, self.node_label, str(error)) from None

    def _log_in(self, config: Mapping[str, Any]) -> paramiko.SSHClient:
        login = self.login
        host, port = config["hostname"], int(config.get("port", 22))
        client = paramiko.SSHClient()
        name = host if port == 22 else f"[{host}]:{port}"
        if login.host_key:
            kind, _, encoded = login.host_key.partition(" ")
            key = paramiko.PKey.from_type_string(kind, base64.b64decode(encoded))
            client.get_host_keys().add(name, key.get_name(), key)
        else:
            for known in (*_known_hosts(config), Path("/etc/ssh/ssh_known_hosts")):
                if known.exists():
                    client.load_system_host_keys(str(known))
        client.set_missing_host_key_policy(_HostKeyPrompt(self, _known_hosts(config)[0]))
        files = [login.identity_file]
        if not login.identity_file:  # ssh ignores missing ones, too
            files = [
                file for file in config.get("identityfile", ()) if Path(file).expanduser().exists()
            ]
        seconds = login.connect_timeout
        try:
            client.connect(
                host,
                port,
                config.get("user"),
                allow_agent=not login.identity_only,
                look_for_keys=not login.identity_only,
                key_filename=cast("Any", [str(Path(file).expanduser()) for file in files]),
                timeout=seconds,
                banner_timeout=seconds,
                auth_timeout=max(seconds, 30),
                sock=self._socket(host, port),
                transport_factory=cast("Any", _KeyTransport),
            )
        except BaseException:
            client.close()
            raise
        _transport(client).set_keepalive(_ALIVE_SECONDS)
        return client

    def _socket(self, host: str, port: int) -> socket.socket:
        sock = socket.create_connection((host, port), self.login.connect_timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # unsupported: losses are detected later
            sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, _CUT_MILLISECONDS)
        return sock


class _KeyTransport(paramiko.Transport):
    """Refuse a second factor, for which paramiko would read standard input."""

    def auth_interactive_dumb(
        self, username: str, handler: object = None, submethods: str = ""
    ) -> list[str]:
        """Raise AuthenticationException."""
        raise paramiko.AuthenticationException("The host asks for more than a key.")


class _HostKeyPrompt(paramiko.MissingHostKeyPolicy):
    """First contact: prompt with the fingerprint.

    paramiko itself refuses any other key of a host with a pinned key.
    """

    def __init__(self, connection: ParamikoConnection, known_hosts: Path) -> None:
        self._connection = connection
        self._known_hosts = known_hosts

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Raise NodeUnreachable unless the user confirms."""
        self._connection._confirm_key(fingerprint(key.asbytes()))
        append_known_host(f"{hostname} {key.get_name()} {key.get_base64()}", self._known_hosts)


def _known_hosts(config: Mapping[str, Any]) -> list[Path]:
    return known_hosts_files(str(config.get("userknownhostsfile", "~/.ssh/known_hosts")))


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    transport = client.get_transport()
    if transport is None:
        raise EOFError("the connection is closed")
    return transport


class ParamikoTransport:
    """Programs over a shared connection; closing it kills its own programs only."""

    def __init__(self, connection: ParamikoConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._running: set[paramiko.Channel] = set()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        channel, master = self._connection.channel()
        call = shell.ShellCall(argv, master, on_stdout)
        with self._lock:
            self._running.add(channel)
        try:
            self._exchange(channel, call, stdin, timeout)
        except BaseException:
            self._connection.kill_group(call.out.began)
            raise
        finally:
            with self._lock:
                closed = channel not in self._running
                self._running.discard(channel)
            channel.close()
        if call.out.ended is not None:
            return call.output(int(call.out.ended))
        self._connection.kill_group(call.out.began)
        if closed:
            return call.output(-signal.SIGKILL)
        raise self._connection.lost(call.messages.decode(errors="replace"))

    def _exchange(
        self,
        channel: paramiko.Channel,
        call: shell.ShellCall,
        stdin: Iterable[bytes],
        timeout: float | None,
    ) -> None:
        """Exchange until both streams had their second mark, or the channel ends."""
        sender = InputSender(
            chain((call.line,), stdin),
            channel.sendall,
            lambda: end_input(channel),
            (OSError, EOFError, paramiko.SSHException),
        )
        label = f"{self._connection.node_label}: a program"
        while not call.over():
            is_closed = channel.closed or channel.eof_received
            received = False
            if channel.recv_ready():
                call.out.feed(channel.recv(_READ_BYTES))
                received = True
            if channel.recv_stderr_ready():
                call.err.feed(channel.recv_stderr(_READ_BYTES))
                received = True
            wait = sender.wait_seconds(received, timeout, label)
            if not received:
                if is_closed:
                    return
                with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                    select.select([channel], [], [], wait)

    def expose(self, port: int) -> AbstractContextManager[int]:
        return self._connection.expose(port)

    def close(self) -> None:
        """Kill programs that are still running."""
        with self._lock:
            left, self._running = self._running, set()
        for channel in left:
            channel.close()


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


_: type[Transport] = ParamikoTransport
