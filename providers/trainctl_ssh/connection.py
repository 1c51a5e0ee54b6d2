"""What connections by ssh and by paramiko share: attempts, calls, login failures with remedies, host keys."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import select
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import CommandOutput, Confirm, Transport
from trainctl.remote.processes import ProgramStreams
from trainctl.remote.responses import printable_tail
from trainctl_ssh import shell
from trainctl_ssh.hosts import SshLogin

if TYPE_CHECKING:
    from _typeshed import HasFileno

_FAILURES = (
    (
        r"Permission denied \(|Too many authentication failures|No authentication methods",
        "rejected the offered keys",
        "Add an authorized key to the SSH agent, or set identity_file. Check the login name (user).",
        partial(NodeUnreachable, code="ssh-permission-denied"),
    ),
    (
        r"Could not resolve hostname|Name or service not known",
        "has an unknown address",
        "Correct the host name, or set address of the host.",
        partial(NodeUnreachable, code="ssh-host-not-found"),
    ),
    (
        r"timed out|No route to host|Network is unreachable|is down|No existing session|SSH protocol banner",
        "timed out",
        "Check that the host is on and not behind a firewall. For a slow host, set connect_timeout.",
        partial(NodeUnreachable, code="ssh-timeout"),
    ),
    (
        r"Connection refused",
        "refused the connection",
        "Start sshd on the host, or correct its port.",
        partial(NodeUnreachable, code="ssh-connection-refused"),
    ),
)
"""Causes of failures: pattern of ssh's messages, summary, remedy and error."""


def login_error(node_label: str, stderr: bytes) -> NodeUnreachable:
    """Return the error for ssh's standard error."""
    words = printable_tail(stderr)
    for pattern, summary, fix, error in _FAILURES:
        if re.search(pattern, words):
            return error(f"{node_label} {summary}", f"{words.splitlines()[-1]}\n{fix}")
    return NodeUnreachable(f"{node_label} is unreachable", words or "ssh printed no message.")


PIN = "trainctl"
"""Name of a pinned key in its file of known hosts."""
_FAILURE_TTL_SECONDS = 1.0
"""How long a failure is reused: a command often connects twice in a row. Retries wait longer."""


_GREETING_SECONDS = 30
"""Time of an account's shell start-up files, in addition to that of the connection."""
CLOSE_SECONDS = 2
"""Longest wait for an attempt or a process of the connection to end."""
_BY_JUMP_HOST = threading.BoundedSemaphore(8)
"""Logins at once that may lead over a jump host: sshd drops more than ten that aren't authenticated (MaxStartups)."""
_CONFIGURATIONS = ("~/.ssh/config", "/etc/ssh/ssh_config", "/etc/ssh/ssh_config.d")
_PROXY = compile_lazily(r"(?im)^\s*(?:proxyjump|proxycommand)\b")
_OWN_PROXY = compile_lazily(r"(?im)^\s*(?:proxyjump|proxycommand|include)\b")


@cache
def has_proxy() -> bool:
    """Return whether the ssh configuration may lead to a host over another: by a proxy, or by a file that the user's includes."""
    for place in (Path(name).expanduser() for name in _CONFIGURATIONS):
        for path in place.glob("*.conf") if place.is_dir() else (place,):
            with contextlib.suppress(OSError):
                pattern = _OWN_PROXY if place.name == "config" else _PROXY
                if pattern.search(path.read_text(errors="replace")):
                    return True
    return False


class SshConnection:
    """Connection to a host by some program; it is opened once, and its keeper ends with it."""

    transport: type[SshTransport]
    """Class of its transports."""
    open: Callable[[], None]
    """Log in and start the keeper; NodeUnreachable."""
    is_alive: Callable[[], bool]
    """Return whether the connection is open, as far as this machine knows."""
    send: Callable[[bytes], None]
    """Send a line to the keeper; OSError."""
    exchange: Callable[[ProgramStreams], None]
    """Run a shell on the host until it ends, or the streams are over."""
    expose: Callable[[int], AbstractContextManager[int]]
    """Forward a port as ``Transport.expose``."""
    lost: Callable[[shell.ShellCall], NodeUnreachable]
    """Return the error for a call that the end of its connection or session ended."""
    close: Callable[[], None]
    """Close the connection, which kills its programs. Idempotent."""

    def __init__(self, host: SshHost) -> None:
        self.host = host
        self.pid = 0
        """PID of the keeper, 0 before it has started."""

    def cancel(self) -> None:
        """Make an active ``open`` fail, if possible."""

    def start_keeper(self, output: HasFileno, read: Callable[[], bytes]) -> bytes:
        """Start the keeper; if the connection ends instead, return what the host printed."""
        token = os.urandom(16).hex()
        greeting = shell.MarkedOutput(token, lambda _: None)
        with contextlib.suppress(BrokenPipeError):
            self.send(shell.keepalive_line(token))
        end = time.monotonic() + self.host.login.connect_timeout + _GREETING_SECONDS
        while greeting.began is None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                raise NodeUnreachable(
                    f"{self.host.node_label} does not respond after login",
                    "Check the shell start-up files of the account, and that its login shell is a shell.",
                    code="ssh-timeout",
                )
            data = read()
            if not data:
                return greeting.before
            greeting.feed(data)
        self.pid = int(greeting.began)
        return b""

    def kill_group(self, group: str | None) -> None:
        """Kill a process group on the host."""
        if group and group.isdigit():
            with contextlib.suppress(Exception):  # lost: the host's watchers kill the group
                self.send(f"{group}\n".encode())


class SshHost:
    """Login to a host, with a connection that is opened on demand and after a loss; thread-safe.

    One attempt at a time, under ``_lock``, is shared by waiting threads.
    """

    def __init__(
        self,
        program: type[SshConnection],
        login: SshLogin,
        node_label: str,
        confirm: Confirm,
    ) -> None:
        self.login = login
        self.node_label = node_label
        self._program = program
        self._confirm = confirm
        self._lock = threading.RLock()
        self._attempt: SshConnection | None = None
        self._connection: SshConnection | None = None
        self._closings = 0
        self._failed_at = 0.0
        self._error: NodeUnreachable | None = None

    def transport(self) -> SshTransport:
        """Return a transport over the shared connection."""
        return self._program.transport(self)

    def connection(self) -> SshConnection:
        """Return the open connection; NodeUnreachable if the attempt fails."""
        began = time.monotonic()
        with self._lock:
            if self._connection is not None and self._connection.is_alive():
                return self._connection
            if self._error is not None and began < self._failed_at + _FAILURE_TTL_SECONDS:
                error = self._error
                raise NodeUnreachable(error.summary, error.detail, code=error.code) from error
            self.close()
            closings = self._closings
            attempt = self._attempt = self._program(self)
            proxied = self.login.jump or has_proxy()
            try:
                with _BY_JUMP_HOST if proxied else contextlib.nullcontext():
                    attempt.open()
            except BaseException as error:
                attempt.close()
                if isinstance(error, NodeUnreachable):
                    self._failed_at, self._error = time.monotonic(), error
                raise
            finally:
                self._attempt = None
            if self._closings != closings:
                attempt.close()
                raise self.lost_error(b"It was closed while it was opened.")
            self._connection = attempt
            return attempt

    def close(self) -> None:
        """Close the connection, which kills its programs, or cancel an active attempt."""
        self._closings += 1
        if (attempt := self._attempt) is not None:
            attempt.cancel()
        if not self._lock.acquire(timeout=CLOSE_SECONDS):
            return  # an active attempt, which can't be cancelled, closes what it opens
        try:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        finally:
            self._lock.release()

    @property
    def options(self) -> dict[str, str]:
        """Options of ssh_config(5) for the login; empty members are left to the user's configuration."""
        login = self.login
        options = {
            "User": login.user,
            "Port": str(login.port or ""),
            "IdentityFile": quoted(login.identity_file) if login.identity_file else "",
            "IdentitiesOnly": "yes" if login.identity_only else "",
            "ProxyJump": login.jump,
        }
        if login.host_key:
            path = quoted(self.pin).replace("%", "%%")
            options |= {"HostKeyAlias": PIN, "StrictHostKeyChecking": "yes", "UpdateHostKeys": "no"}
            options |= {"UserKnownHostsFile": path, "GlobalKnownHostsFile": "/dev/null"}
        return {name: value for name, value in options.items() if value}

    @cached_property
    def pin(self) -> Path:
        """A known-hosts file that has only the pinned key; a temporary one if the user's data can't be written."""
        from trainctl_ssh.keys import data_directory

        key = " ".join(self.login.host_key.split()[:2])  # one line, whatever the state says
        content = f"{PIN} {key}\n".encode()
        name = f"pin-{hashlib.sha256(content).hexdigest()[:16]}"
        try:
            return _stored(data_directory("ssh") / name, content)
        except OSError:
            return _stored(private_directory() / name, content)

    def confirm_key(self, shown: str) -> None:
        """Raise NodeUnreachable unless the user trusts an unknown key of this fingerprint."""
        if self._confirm(f"{self.node_label} is unknown. Its host key is {shown}. Trust this key?"):
            return
        login = self.login
        port = f"-p {login.port} " if login.port else ""
        raise NodeUnreachable(
            f"unknown host key of {self.node_label}: {shown}",
            f"If the key is right, connect once with ssh and confirm it, or pin it: set host_key in the manifest to the output of `ssh-keyscan {port}{login.address}` after the name.",
            code="ssh-unknown-key",
        )

    def key_changed_error(self, shown: str, removal: str) -> NodeUnreachable:
        """Return the error for a changed host key; ``removal`` says how to remove the old key from the known hosts."""
        pinned = "Set host_key in the manifest to the new key, as `ssh-keyscan` prints it."
        return NodeUnreachable(
            f"host key of {self.node_label} has changed: now {shown or 'a key of another type'}",
            f"The connection may be intercepted. If the host was reinstalled:\n{pinned if self.login.host_key else removal}",
            code="ssh-key-changed",
        )

    def forwarding_error(self, message: str) -> NodeError:
        """Return the error for a port that can't be forwarded."""
        return NodeError(
            f"cannot forward a port to {self.node_label}",
            f"{message}\nSet AllowTcpForwarding yes for its sshd, or use another local port.".lstrip(),
            code="ssh-forwarding",
        )

    def lost_error(self, messages: bytes) -> NodeUnreachable:
        """Return the error for a call whose connection was lost."""
        return NodeUnreachable(f"{self.node_label}: connection lost", printable_tail(messages))


class SshTransport:
    """Programs over a shared connection; closing it kills its own programs only."""

    def __init__(self, host: SshHost) -> None:
        self.host = host
        self._closings = 0

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        connection = self.host.connection()
        call = shell.ShellCall(argv, connection.pid, on_stdout)
        closings = self._closings
        streams = ProgramStreams(
            on_stdout=call.out.feed,
            on_stderr=call.err.feed,
            stdin=chain((call.line,), stdin),
            timeout=timeout,
            over=lambda: call.over() or self._closings != closings,
            node_label=f"{self.host.node_label}: a program",
        )
        try:
            connection.exchange(streams)
        except BaseException:
            connection.kill_group(call.out.began)
            raise
        if call.out.ended is not None:
            return call.output(int(call.out.ended))
        connection.kill_group(call.out.began)
        if self._closings != closings:
            return call.output(-signal.SIGKILL)
        raise connection.lost(call)

    def expose(self, port: int) -> AbstractContextManager[int]:
        return self.host.connection().expose(port)

    def close(self) -> None:
        """Kill programs that are still running."""
        self._closings += 1


def quoted(value: object) -> str:
    """Return a value of ssh_config(5) that may contain spaces and quotes."""
    text = str(value).replace("\\", r"\\").replace('"', r"\"")
    return f'"{text}"'


def _stored(path: Path, content: bytes) -> Path:
    if not path.exists():
        make_directory(path.parent)
        write_atomic(path, content, durable=False)
    return path


def private_directory() -> Path:
    """Return a private directory with a short path, if possible always the same: socket paths have at most 107 bytes."""
    path = Path(f"/tmp/trainctl-{os.getuid()}")  # noqa: S108 - checked before use
    with contextlib.suppress(OSError):
        path.mkdir(0o700, exist_ok=True)
        status = path.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if is_own and not status.st_mode & 0o077:
            return path
    return Path(tempfile.mkdtemp(prefix="trainctl-", dir="/tmp"))


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint as OpenSSH prints it, ``SHA256:`` and unpadded base64."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def known_hosts_files(named: str) -> list[Path]:
    """Split a ``UserKnownHostsFile`` value of ``ssh -G``, which omits quotes."""
    names = re.split(r"\s+(?=[/~])", named.replace('"', "").strip())
    return [Path(name).expanduser() for name in names]


def append_known_host(line: str, known_hosts: Path) -> None:
    """Append a line to a known-hosts file by a single write."""
    known_hosts.parent.mkdir(0o700, parents=True, exist_ok=True)
    with known_hosts.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            line = line if stream.read() == b"\n" else f"\n{line}"
        stream.write(f"{line}\n".encode())


_: type[Transport] = SshTransport
