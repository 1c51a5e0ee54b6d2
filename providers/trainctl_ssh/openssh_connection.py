"""Connection to a host by the ssh program, one per command; see DESIGN.md."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.plugin_api.provider import CommandOutput, Confirm, InteractiveTransport
from trainctl.remote.processes import ProgramRunner, ProgramStreams, kill
from trainctl.remote.responses import printable_tail
from trainctl_ssh import connection as keys
from trainctl_ssh import shell
from trainctl_ssh.connection import (
    CHANGED_KEY,
    CLOSE_SECONDS,
    GREETING_SECONDS,
    UNKNOWN_KEY,
    SshConnection,
    login_error,
)
from trainctl_ssh.hosts import SshLogin

_PROMPT_SECONDS = 30  # a control connection of the user's may hang
_OPTIONS = (
    "BatchMode=yes",
    "LogLevel=ERROR",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlPersist=no",
)


@dataclass(frozen=True, slots=True)
class _ControlMaster:
    """The ssh process that holds a connection, and the options to share it."""

    process: subprocess.Popen[bytes]
    pid: int
    stderr: IO[bytes]
    share: tuple[str, ...]

    @property
    def messages(self) -> bytes:
        """Everything that ssh printed on standard error."""
        self.stderr.seek(0)
        return self.stderr.read()


class OpenSshConnection(SshConnection):
    """A connection by the ssh program."""

    def __init__(
        self, login: SshLogin, node_label: str, environ: Mapping[str, str], confirm: Confirm
    ) -> None:
        super().__init__(login, node_label, {**environ, "SSH_ASKPASS_REQUIRE": "never"}, confirm)
        self._master: _ControlMaster | None = None
        self._attempt: subprocess.Popen[bytes] | None = None
        self._exposed: Counter[int] = Counter()
        self._ports: dict[int, int] = {}
        self._directory = keys.private_directory(environ)

    def transport(self) -> OpenSshTransport:
        """Return a transport over this connection."""
        return OpenSshTransport(self)

    def master(self) -> _ControlMaster:
        """Return the open connection; NodeUnreachable if the attempt fails."""
        while True:
            self._ensure(self._is_open, self._open)
            master = self._master
            if master is not None:  # not closed meanwhile
                return master

    def _is_open(self) -> bool:
        return self._master is not None and self._master.process.poll() is None

    def _open(self) -> None:
        self.close()
        self._master = self._connect()

    def argv(self, master: _ControlMaster) -> list[str]:
        """Return the command line for a call over the connection."""
        return [*self._ssh(), *master.share, *self._destination, shell.COMMAND]

    def terminal_command(self, argv: Sequence[str], *, tty: bool) -> list[str]:
        words = [*self._ssh(), *self.master().share, *(("-t",) if tty else ())]
        return [*words, *self._destination, shell.terminal_line(argv)]

    def kill_group(self, master: _ControlMaster, group: str | None) -> None:
        """Kill a process group on the host."""
        if group and group.isdigit() and master.process.stdin:
            with contextlib.suppress(OSError, ValueError):
                master.process.stdin.write(f"{group}\n".encode())
                master.process.stdin.flush()

    def close(self) -> None:
        """Close the connection, which kills its programs, or cancel an active attempt."""
        attempt = self._attempt
        if attempt is not None:
            kill(attempt)
        with self._lock:
            master, self._master = self._master, None
            self._exposed.clear()
        if master is None:
            return
        with contextlib.suppress(OSError):
            if master.process.stdin:
                master.process.stdin.close()
        master.process.terminate()
        try:
            master.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            kill(master.process)
        master.stderr.close()

    def lost(self, master: _ControlMaster, stderr: bytes) -> NodeUnreachable:
        """Return the error for a call whose connection was lost."""
        if master.process.poll() is not None:
            with contextlib.suppress(ValueError):  # closed meanwhile
                stderr = master.messages or stderr
        return self._lost_error(stderr)

    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        """Equal requests share a forwarding; ssh can't tell them apart."""
        master = self.master()
        ports = ("-R", f"127.0.0.1:0:127.0.0.1:{port}")
        with self._lock:
            if not self._exposed[port]:
                done = self._control(master, "forward", *ports)
                if not done.stdout.strip().isdigit():
                    raise self._forwarding_error(done)
                self._ports[port] = int(done.stdout)
            self._exposed[port] += 1
            remote_port = self._ports[port]
        try:
            yield remote_port
        finally:
            with self._lock:
                self._exposed[port] -= 1
                if self._exposed[port] == 0 and master.process.poll() is None:
                    with contextlib.suppress(TrainctlError):
                        self._control(master, "cancel", *ports)

    @contextmanager
    def forward(self, local_port: int, port: int) -> Iterator[Callable[[], bool]]:
        master = self.master()
        ports = ("-L", f"127.0.0.1:{local_port}:127.0.0.1:{port}")
        done = self._control(master, "forward", *ports)
        if done.returncode != 0:
            raise self._forwarding_error(done)
        try:
            yield lambda: master.process.poll() is None
        finally:
            if master.process.poll() is None:
                with contextlib.suppress(TrainctlError):
                    self._control(master, "cancel", *ports)

    def _control(
        self, master: _ControlMaster, command: str, *ports: str
    ) -> subprocess.CompletedProcess[bytes]:
        return self._run(*master.share, "-O", command, *ports, cleared=False)

    def _forwarding_error(self, done: subprocess.CompletedProcess[bytes]) -> NodeError:
        return NodeError(
            f"cannot forward a port to {self.node_label}",
            f"{printable_tail(done.stderr)}\nSet AllowTcpForwarding yes for its sshd, or use another local port.".lstrip(),
            code="ssh-forwarding",
        )

    def _connect(self) -> _ControlMaster:
        try:
            return self._start_master()
        except _UnknownHostKey:
            line = keys.scan_host_key(self._ssh(), self._destination, self.environ)
            if shown := keys.parse_fingerprint(line):
                self._confirm_key(shown)
                keys.append_known_host(line, self._known_hosts())
        try:
            return self._start_master()
        except _UnknownHostKey as error:
            raise login_error(self.node_label, error.stderr) from None

    def _start_master(self) -> _ControlMaster:
        """Start the ssh process that holds the connection, or share the user's own.

        The host key of the user's connection is unknown, so a host with a pinned key gets a connection of its own.
        """
        options: tuple[str, ...] = ()
        share: tuple[str, ...] = ("-o", "ControlMaster=no")
        if self.login.host_key or self._run("-O", "check").returncode != 0:
            path = self._directory / os.urandom(4).hex()
            share = ("-S", str(path), *share)
            options = ("-S", str(path), "-o", "ControlMaster=yes")
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the connection
        process = subprocess.Popen(
            [*self._ssh(), *options, *self._destination, shell.COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=self.environ,
            start_new_session=True,
        )
        self._attempt = process
        try:
            greeting = self._read_greeting(process)
        except BaseException:
            _kill_process(process)
            stderr.close()
            raise
        finally:
            self._attempt = None
        if greeting.began is None:
            _kill_process(process)
            stderr.seek(0)
            with stderr:
                raise self._refusal(stderr.read() or greeting.before)
        return _ControlMaster(process, int(greeting.began), stderr, share)

    def _read_greeting(self, process: subprocess.Popen[bytes]) -> shell.MarkedOutput:
        """Read the remote PID, unless the connection ends first."""
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        token = os.urandom(16).hex()
        output = shell.MarkedOutput(token, lambda _: None)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(shell.keepalive_line(token))
            process.stdin.flush()
        end = time.monotonic() + self.login.connect_timeout + GREETING_SECONDS
        while output.began is None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise self._silent_error()
            data = os.read(process.stdout.fileno(), 2**16)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(CLOSE_SECONDS)
                return output
            output.feed(data)
        threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
        return output

    def _refusal(self, stderr: bytes) -> Exception:
        text = stderr.decode(errors="replace")
        if self.login.jump and UNKNOWN_KEY in text and "kex_exchange_identification" in text:
            return NodeUnreachable(
                f"{self.node_label}: host key verification of the jump host {self.login.jump} failed",
                "Connect to it once with ssh, and confirm its key.",
                code="ssh-unknown-key",
            )
        if CHANGED_KEY in text or (UNKNOWN_KEY in text and self.login.host_key):
            return keys.key_changed_error(self.node_label, self.login, text)
        if UNKNOWN_KEY in text:
            return _UnknownHostKey(stderr)
        return login_error(self.node_label, stderr)

    def _known_hosts(self) -> Path:
        for text in self._run("-G").stdout.decode(errors="replace").splitlines():
            key, _, value = text.partition(" ")
            if key == "userknownhostsfile" and value:
                return keys.known_hosts_files(value)[0]
        return Path("~/.ssh/known_hosts").expanduser()

    def _run(self, *words: str, cleared: bool = True) -> subprocess.CompletedProcess[bytes]:
        """Run ssh itself, or a command of an open connection."""
        try:
            return subprocess.run(
                [*self._ssh(cleared=cleared), *words, *self._destination],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self.environ,
                start_new_session=True,
                timeout=_PROMPT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NodeUnreachable(
                f"{self.node_label}: ssh timed out after {_PROMPT_SECONDS} s",
                "If an open control connection hangs, close it: ssh -O exit HOST.",
                code="ssh-timeout",
            ) from None

    def _ssh(self, *, cleared: bool = True) -> list[str]:
        login = self.login
        words = ["ssh", "-T", "-x", "-a"]
        for option in (*_OPTIONS, f"ConnectTimeout={login.connect_timeout}"):
            if cleared or not option.startswith("ClearAllForwardings"):
                words += ["-o", option]
        if login.host_key:
            for option in (
                f"UserKnownHostsFile={keys.pinned_known_hosts(self._directory, login.host_key)}",
                "GlobalKnownHostsFile=/dev/null",
                f"HostKeyAlias={keys.PIN}",
                "StrictHostKeyChecking=yes",
            ):
                words += ["-o", option]
        if login.identity_only:
            words += ["-o", "IdentitiesOnly=yes"]
        flags: Sequence[tuple[str, object]] = (
            ("-l", login.user),
            ("-p", login.port),
            ("-i", login.identity_file),
            ("-J", login.jump),
        )
        return words + [word for flag, value in flags if value for word in (flag, str(value))]

    @property
    def _destination(self) -> tuple[str, ...]:
        return ("--", self.login.address)


class _UnknownHostKey(Exception):
    """The host's key is unknown."""

    def __init__(self, stderr: bytes) -> None:
        super().__init__()
        self.stderr = stderr


def _kill_process(process: subprocess.Popen[bytes]) -> None:
    kill(process)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _drain(stream: IO[bytes]) -> None:
    """Read keepalive output, so that the remote side can continue."""
    with stream, contextlib.suppress(OSError):
        while os.read(stream.fileno(), 2**12):
            pass


class OpenSshTransport:
    """Programs over a shared connection; closing it kills its own programs only."""

    def __init__(self, connection: OpenSshConnection) -> None:
        self._connection = connection
        self._programs = ProgramRunner()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        connection = self._connection
        master = connection.master()
        call = shell.ShellCall(argv, master.pid, on_stdout)
        label = f"{connection.node_label}: a program"
        streams = ProgramStreams(
            on_stdout=call.out.feed,
            on_stderr=call.err.feed,
            stdin=stdin,
            head=call.line,
            timeout=timeout,
            over=call.over,
            node_label=label,
        )
        try:
            code = self._programs.run(connection.argv(master), streams, connection.environ)
        except BaseException:
            connection.kill_group(master, call.out.began)
            raise
        if call.out.ended is not None:
            return call.output(int(call.out.ended))
        connection.kill_group(master, call.out.began)
        if code == -signal.SIGKILL:  # closed meanwhile
            return call.output(code)
        if call.out.began is None and master.process.poll() is None:
            raise login_error(connection.node_label, call.err.before)
        raise connection.lost(master, call.messages)

    def expose(self, port: int) -> contextlib.AbstractContextManager[int]:
        return self._connection.expose(port)

    def terminal_command(self, argv: Sequence[str], *, tty: bool) -> Sequence[str]:
        return self._connection.terminal_command(argv, tty=tty)

    @property
    def ssh_options(self) -> Mapping[str, str]:
        return self._connection.login.options

    def forward(
        self, local_port: int, port: int
    ) -> contextlib.AbstractContextManager[Callable[[], bool]]:
        return self._connection.forward(local_port, port)

    def close(self) -> None:
        """Kill programs that are still running."""
        self._programs.close()


_: type[InteractiveTransport] = OpenSshTransport
