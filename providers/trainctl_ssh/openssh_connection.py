"""Connection to a host by the ssh program, one per command; see DESIGN.md."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, cast

from trainctl.errors import NodeUnreachable, TrainctlError
from trainctl.plugin_api.provider import InteractiveTransport
from trainctl.remote.processes import ProgramRunner, ProgramStreams, kill
from trainctl.remote.responses import printable_tail
from trainctl_ssh import shell
from trainctl_ssh.connection import (
    CLOSE_SECONDS,
    SshConnection,
    SshHost,
    SshTransport,
    append_known_host,
    fingerprint,
    known_hosts_files,
    login_error,
    private_directory,
    quoted,
)

_PROMPT_SECONDS = 30  # a control connection of the user's may hang
_OPTIONS = {
    "BatchMode": "yes",
    "LogLevel": "ERROR",
    "RequestTTY": "no",
    "ForwardX11": "no",
    "ForwardAgent": "no",
    "RemoteCommand": "none",
    "ClearAllForwardings": "yes",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ControlMaster": "no",
    "ControlPersist": "no",
}
_UNKNOWN_KEY = "Host key verification failed"
_CHANGED_KEY = "REMOTE HOST IDENTIFICATION HAS CHANGED"


class OpenSshTransport(SshTransport):
    """Programs and terminals over a shared connection."""

    @property
    def _connection(self) -> OpenSshConnection:
        return cast("OpenSshConnection", self.host.connection())

    def terminal_command(self, argv: Sequence[str], *, tty: bool) -> Sequence[str]:
        ssh = self._connection.command_line(RequestTTY="yes" if tty else "no")
        return [*ssh, shell.terminal_line(argv)]

    @property
    def ssh_options(self) -> Mapping[str, str]:
        return {"HostName": self.host.login.address, **self.host.options}

    def forward(self, local_port: int, port: int) -> AbstractContextManager[Callable[[], bool]]:
        return self._connection.forward(local_port, port)


class OpenSshConnection(SshConnection):
    """A connection that an ssh process holds, and others share by its control socket."""

    transport = OpenSshTransport
    _process: subprocess.Popen[bytes] | None = None
    _stderr: IO[bytes]
    socket = ""
    """Control socket; empty if the connection is one of the user's own."""

    def __init__(self, host: SshHost) -> None:
        super().__init__(host)
        self._environ = {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}
        self._lock = threading.Lock()
        self._forwardings: Counter[tuple[str, ...]] = Counter()

    def open(self) -> None:
        """Share an open connection of the user's, unless the key is pinned: its host key is unknown."""
        if self.host.login.host_key or self._run("-O", "check").returncode != 0:
            self.socket = str(private_directory() / os.urandom(4).hex())
        try:
            self._start()
        except NodeUnreachable as error:
            is_unknown = error.code == "ssh-unknown-key" and not self.host.login.host_key
            lines = self._scan() if is_unknown else ""
            if not lines:
                raise
            self.host.confirm_key(fingerprint(base64.b64decode(lines.split()[2])))
            append_known_host(lines, self._known_hosts())
            self.close()
            self._start()

    def _start(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the connection
        self._process = process = subprocess.Popen(
            [*self.command_line(ControlMaster="yes" if self.socket else "no"), shell.COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._environ,
            start_new_session=True,
        )
        output = cast("IO[bytes]", process.stdout)
        printed = self.start_keeper(output, lambda: os.read(output.fileno(), 2**16))
        if not self.pid:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(CLOSE_SECONDS)
            raise self._refusal(self._messages() or printed)

    def cancel(self) -> None:
        """Kill the process."""
        if self._process is not None:
            kill(self._process)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, line: bytes) -> None:
        stdin = cast("IO[bytes]", cast("subprocess.Popen[bytes]", self._process).stdin)
        stdin.write(line)
        stdin.flush()

    def exchange(self, streams: ProgramStreams) -> None:
        ProgramRunner().run([*self.command_line(), shell.COMMAND], streams, self._environ)

    def lost(self, call: shell.ShellCall) -> NodeUnreachable:
        """Return the error for a session that was refused, or for a lost connection."""
        messages = call.messages
        if self.is_alive():
            if call.out.began is None:
                return login_error(self.host.node_label, call.err.before)
        else:
            with contextlib.suppress(ValueError):  # closed meanwhile
                messages = self._messages() or messages
        return self.host.lost_error(messages)

    def close(self) -> None:
        process = self._process
        if process is None or self._stderr.closed:
            return
        with contextlib.suppress(OSError):
            cast("IO[bytes]", process.stdin).close()
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_SECONDS)
        kill(process)  # also its jump host or proxy
        cast("IO[bytes]", process.stdout).close()
        self._stderr.close()

    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        with self._forwarding("-R", f"127.0.0.1:0:127.0.0.1:{port}") as remote_port:
            yield int(remote_port)

    @contextmanager
    def forward(self, local_port: int, port: int) -> Iterator[Callable[[], bool]]:
        """Forward a local port as ``InteractiveTransport.forward``."""
        with self._forwarding("-L", f"127.0.0.1:{local_port}:127.0.0.1:{port}"):
            yield self.is_alive

    @contextmanager
    def _forwarding(self, *ports: str) -> Iterator[bytes]:
        """Forward ports; yields what ssh prints. Equal requests share a forwarding: ssh can't tell them apart."""
        with self._lock:
            done = self._run("-O", "forward", *ports, ClearAllForwardings="no")
            if done.returncode != 0:
                raise self.host.forwarding_error(printable_tail(done.stderr))
            self._forwardings[ports] += 1
        try:
            yield done.stdout
        finally:
            with self._lock:
                self._forwardings[ports] -= 1
                if not self._forwardings[ports] and self.is_alive():
                    with contextlib.suppress(TrainctlError):
                        self._run("-O", "cancel", *ports, ClearAllForwardings="no")

    def _messages(self) -> bytes:
        """Return what ssh has printed on standard error."""
        self._stderr.seek(0)
        return self._stderr.read()

    def _refusal(self, stderr: bytes) -> NodeUnreachable:
        host, text = self.host, stderr.decode(errors="replace")
        is_unknown = _UNKNOWN_KEY in text
        if is_unknown and "kex_exchange_identification" in text:
            return NodeUnreachable(
                f"{host.node_label}: host key verification of the jump host {host.login.jump} failed",
                "Connect to it once with ssh, and confirm its key.",
                code="ssh-unknown-key",
            )
        if _CHANGED_KEY in text or (is_unknown and host.login.host_key):
            shown = re.search(r"SHA256:[A-Za-z0-9+/]{43}", text)
            # ssh prints the file and line of the old key, and on some systems a command
            old = re.search(r"Offending .*(\n +.*)*", printable_tail(stderr))
            removal = old[0] if old else f"ssh-keygen -R {host.login.address}"
            if "ssh-keygen" not in removal:
                removal += "\nRemove that line."
            return host.key_changed_error(shown[0] if shown else "", removal)
        if not is_unknown:
            return login_error(host.node_label, stderr)
        return NodeUnreachable(
            f"unknown host key of {host.node_label}", printable_tail(stderr), code="ssh-unknown-key"
        )

    def _scan(self) -> str:
        """Return the known-hosts lines of an unknown host, to which no key is offered; empty without a key."""
        with tempfile.TemporaryDirectory(prefix="trainctl-") as directory:
            path = Path(directory) / "known_hosts"
            self._run(
                UserKnownHostsFile=quoted(path),
                GlobalKnownHostsFile="/dev/null",
                StrictHostKeyChecking="accept-new",
                UpdateHostKeys="no",
                PreferredAuthentications="none",
                ControlPath="none",
            )
            return path.read_text().strip() if path.exists() else ""

    def _known_hosts(self) -> Path:
        settings = self._run("-G").stdout.decode(errors="replace")
        named = re.search(r"(?m)^userknownhostsfile (.+)", settings)
        return known_hosts_files(named[1] if named else "~/.ssh/known_hosts")[0]

    def _run(self, *words: str, **options: str) -> subprocess.CompletedProcess[bytes]:
        """Run ssh itself, or a command of an open connection."""
        seconds = self.host.login.connect_timeout + _PROMPT_SECONDS
        try:
            return subprocess.run(
                self.command_line(*words, **options),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._environ,
                start_new_session=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NodeUnreachable(
                f"{self.host.node_label}: ssh timed out after {seconds} s",
                "If an open control connection hangs, close it: ssh -O exit HOST.",
                code="ssh-timeout",
            ) from None

    def command_line(self, *words: str, **options: str) -> list[str]:
        """Return the command line of ssh up to the address, for a call over the connection unless ``options`` differ."""
        login = self.host.login
        own = {"ConnectTimeout": str(login.connect_timeout)}
        if self.socket:
            own["ControlPath"] = self.socket
        merged = {**_OPTIONS, **own, **self.host.options, **options}
        settings = (f"-o{name}={value}" for name, value in merged.items())
        return ["ssh", *settings, *words, "--", login.address]


_: type[InteractiveTransport] = OpenSshTransport
