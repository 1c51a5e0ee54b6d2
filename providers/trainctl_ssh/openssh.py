"""A link to a host by the system's OpenSSH: one connection for the whole command. See DESIGN.md."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.remote.answers import readable
from trainctl.remote.programs import Programs, Streams, kill
from trainctl.spi.provider import Confirm
from trainctl.spi.transport import Output, Transport
from trainctl_ssh import host_keys, shell
from trainctl_ssh.hosts import Login
from trainctl_ssh.refusals import CHANGED_KEY, UNKNOWN_KEY, Attempts, key_not_known, refusal

_GREETING_SECONDS = 30
_CLOSE_SECONDS = 2
_ASK_SECONDS = 30
_OPTIONS = (
    "BatchMode=yes",
    "LogLevel=ERROR",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlPersist=no",
)
_NEWER_OPTIONS = ("StdinNull=no", "ForkAfterAuthentication=no")
"""Words of OpenSSH 8.7 (https://www.openssh.com/txt/release-8.7): an older one ends at them, and has none in its configuration."""


@dataclass(frozen=True, slots=True)
class _Keeper:
    """The process that holds a connection open, what its far end is called there, and how others share it."""

    process: subprocess.Popen[bytes]
    pid: int
    said: IO[bytes]
    share: tuple[str, ...]

    @property
    def words(self) -> bytes:
        """Everything that ssh has complained about."""
        self.said.seek(0)
        return self.said.read()


class OpenSsh:
    """One host. Connects when it is first needed, and again when the connection was lost; safe to use from many threads."""

    def __init__(
        self, login: Login, who: str, environ: Mapping[str, str], confirm: Confirm
    ) -> None:
        self.login = login
        self.who = who
        self._confirm = confirm
        self._attempts = Attempts()
        self._lock = self._attempts.lock
        self._keeper: _Keeper | None = None
        self._attempt: subprocess.Popen[bytes] | None = None
        self._exposed: Counter[int] = Counter()
        self._ports: dict[int, int] = {}
        self._place = host_keys.private_directory(environ)
        self.environ = {**environ, "SSH_ASKPASS_REQUIRE": "never"}

    def transport(self) -> OpenSshTransport:
        """A way to run programs over it."""
        return OpenSshTransport(self)

    def keeper(self) -> _Keeper:
        """The live connection. NodeUnreachable with ssh's last words, also if that was another's attempt, which was waited for."""
        while True:
            self._attempts.ensure(self._is_open, self._open)
            keeper = self._keeper
            if keeper is not None:  # not closed in between
                return keeper

    def _is_open(self) -> bool:
        return self._keeper is not None and self._keeper.process.poll() is None

    def _open(self) -> None:
        self.close()
        self._keeper = self._connect()

    def argv(self, keeper: _Keeper) -> list[str]:
        """How a command is run over the connection."""
        return [*self._ssh(), *keeper.share, *self._destination, shell.COMMAND]

    def end(self, keeper: _Keeper, group: str | None) -> None:
        """End a process group on the host."""
        if group and group.isdigit() and keeper.process.stdin:
            with contextlib.suppress(OSError, ValueError):
                keeper.process.stdin.write(f"{group}\n".encode())
                keeper.process.stdin.flush()

    def close(self) -> None:
        """Let go of the connection; what runs over it ends. An attempt to connect that is under way is given up."""
        attempt = self._attempt
        if attempt is not None:
            kill(attempt)
        with self._lock:
            keeper, self._keeper = self._keeper, None
            self._exposed.clear()
        if keeper is None:
            return
        with contextlib.suppress(OSError):
            if keeper.process.stdin:
                keeper.process.stdin.close()
        keeper.process.terminate()
        try:
            keeper.process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            kill(keeper.process)
        keeper.said.close()

    def lost(self, keeper: _Keeper, said: bytes) -> NodeUnreachable:
        """The error for a call that ended without its end."""
        if keeper.process.poll() is None:
            return NodeUnreachable(f"{self.who}: the connection was cut", readable(said))
        with contextlib.suppress(ValueError):  # closed in between
            said = keeper.words or said
        return NodeUnreachable(f"{self.who}: the connection was cut", readable(said))

    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        """See Transport. Equal requests share one forwarding: ssh knows them apart by nothing."""
        keeper = self.keeper()
        with self._lock:
            if not self._exposed[port]:
                self._ports[port] = self._forward(keeper, "forward", port)
            self._exposed[port] += 1
            there = self._ports[port]
        try:
            yield there
        finally:
            with self._lock:
                self._exposed[port] -= 1
                if self._exposed[port] == 0 and keeper.process.poll() is None:
                    with contextlib.suppress(TrainctlError):
                        self._forward(keeper, "cancel", port)

    def _forward(self, keeper: _Keeper, what: str, port: int) -> int:
        done = self._run(
            *keeper.share, "-O", what, "-R", f"127.0.0.1:0:127.0.0.1:{port}", cleared=False
        )
        if what == "forward" and not done.stdout.strip().isdigit():
            raise NodeError(
                f"{self.who} does not forward ports",
                f"{readable(done.stderr)}\nIts sshd needs AllowTcpForwarding yes, or remote.".lstrip(),
                code="ssh-forwarding",
            )
        return int(done.stdout.strip() or 0)

    def _connect(self) -> _Keeper:
        try:
            return self._keep()
        except _Unknown:
            self._first_contact()
        try:
            return self._keep()
        except _Unknown as error:
            raise refusal(self.who, error.said) from None

    def _keep(self) -> _Keeper:
        """Start the process that holds the connection; over a connection that the user has open already, where there is one.

        It is unknown which key that connection's host had, so a host with a pinned key gets its own.
        """
        options: tuple[str, ...] = ()
        share: tuple[str, ...] = ("-o", "ControlMaster=no")
        if self.login.host_key or self._run("-O", "check").returncode != 0:
            path = self._place / secrets.token_hex(4)
            share = ("-S", str(path), *share)
            options = ("-S", str(path), "-o", "ControlMaster=yes")
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the connection
        process = subprocess.Popen(
            [*self._ssh(), *options, *self._destination, shell.COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=self.environ,
            start_new_session=True,
        )
        self._attempt = process
        try:
            greeting = self._greeted(process)
        except BaseException:
            _abandon(process)
            said.close()
            raise
        finally:
            self._attempt = None
        if greeting.began is None:
            _abandon(process)
            said.seek(0)
            with said:
                raise self._refusal(said.read() or greeting.before)
        return _Keeper(process, int(greeting.began), said, share)

    def _greeted(self, process: subprocess.Popen[bytes]) -> shell.Cut:
        """What the far end said: the number of its process, unless it ended before."""
        assert process.stdin is not None  # noqa: S101 - they were asked for
        assert process.stdout is not None  # noqa: S101
        token = secrets.token_hex(16)
        cut = shell.Cut(token, lambda _: None)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(shell.keep(token))
            process.stdin.flush()
        end = time.monotonic() + self.login.connect_timeout + _GREETING_SECONDS
        while cut.began is None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise NodeUnreachable(
                    f"{self.who} logs in and then says nothing",
                    "Something in the account's shell start-up files waits, or is not a shell.",
                    code="ssh-no-answer",
                )
            data = os.read(process.stdout.fileno(), 2**16)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_CLOSE_SECONDS)
                return cut
            cut.feed(data)
        threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
        return cut

    def _refusal(self, said: bytes) -> Exception:
        text = said.decode(errors="replace")
        if CHANGED_KEY in text or (UNKNOWN_KEY in text and self.login.host_key):
            return host_keys.changed(self.who, self.login, text)
        if UNKNOWN_KEY in text:
            return _Unknown(said)
        return refusal(self.who, said)

    def _first_contact(self) -> None:
        line = host_keys.shown_key(self._ssh(), self._destination, self.environ)
        shown = host_keys.fingerprint_of(line)
        if not shown:
            return
        question = f"{self.who} is not known yet. Its key is {shown}. Connect to it from now on?"
        if not self._confirm(question):
            raise key_not_known(self.who, self.login, shown)
        host_keys.remember(line, self._known_hosts())

    def _known_hosts(self) -> Path:
        for text in self._run("-G").stdout.decode(errors="replace").splitlines():
            key, _, value = text.partition(" ")
            if key == "userknownhostsfile" and value:
                return host_keys.files_of(value)[0]
        return Path("~/.ssh/known_hosts").expanduser()

    def _run(self, *words: str, cleared: bool = True) -> subprocess.CompletedProcess[bytes]:
        """A question to ssh itself, or to a connection that is open."""
        try:
            return subprocess.run(
                [*self._ssh(cleared=cleared), *words, *self._destination],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self.environ,
                start_new_session=True,
                timeout=_ASK_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NodeUnreachable(
                f"{self.who}: ssh didn't answer for {_ASK_SECONDS} s",
                "A control connection that is open may hang: ssh -O exit HOST ends it.",
                code="ssh-no-answer",
            ) from None

    def _ssh(self, *, cleared: bool = True) -> list[str]:
        login = self.login
        words = ["ssh", "-T", "-x", "-a"]
        for option in (*_OPTIONS, *_newer_options(), f"ConnectTimeout={login.connect_timeout}"):
            if cleared or not option.startswith("ClearAllForwardings"):
                words += ["-o", option]
        if login.host_key:
            for option in (
                f"UserKnownHostsFile={host_keys.pinned(self._place, login.host_key)}",
                "GlobalKnownHostsFile=/dev/null",
                f"HostKeyAlias={host_keys.PIN}",
                "StrictHostKeyChecking=yes",
            ):
                words += ["-o", option]
        given: Sequence[tuple[str, object]] = (
            ("-l", login.user),
            ("-p", login.port),
            ("-i", login.identity_file),
            ("-J", login.jump),
        )
        return words + [word for flag, value in given if value for word in (flag, str(value))]

    @property
    def _destination(self) -> tuple[str, ...]:
        return ("--", self.login.address)


@functools.cache
def _newer_options() -> tuple[str, ...]:
    said = subprocess.run(["ssh", "-V"], capture_output=True, check=False).stderr
    version = re.match(rb"OpenSSH_(\d+)\.(\d+)", said)
    known = version and tuple(map(int, version.groups())) >= (8, 7)
    return _NEWER_OPTIONS if known else ()


class _Unknown(Exception):
    """The host's key is not known."""

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self.said = said


def _abandon(process: subprocess.Popen[bytes]) -> None:
    kill(process)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _drain(stream: IO[bytes]) -> None:
    """Read what the far end says now and then, so that it can go on saying it."""
    with stream, contextlib.suppress(OSError):
        while os.read(stream.fileno(), 2**12):
            pass


class OpenSshTransport:
    """Commands over a link that others may use as well; closing it ends its own commands only."""

    def __init__(self, link: OpenSsh) -> None:
        self._link = link
        self._programs = Programs()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> Output:
        """See Transport."""
        link, token = self._link, secrets.token_hex(16)
        keeper = link.keeper()
        stdout, stderr = bytearray(), bytearray()
        out = shell.Cut(token, on_stdout or stdout.extend)
        err = shell.Cut(token, stderr.extend)
        streams = Streams(
            out.feed,
            err.feed,
            stdin,
            shell.call(token, argv, keeper.pid),
            timeout,
            lambda: out.ended is not None and err.ended is not None,
            f"{link.who}: a program",
        )
        try:
            code = self._programs.run(link.argv(keeper), streams, link.environ)
        except BaseException:
            link.end(keeper, out.began)
            raise
        if out.ended is not None:
            return Output(int(out.ended), bytes(stdout), bytes(stderr))
        link.end(keeper, out.began)
        if code == -signal.SIGKILL:  # closed meanwhile
            return Output(code, bytes(stdout), bytes(stderr))
        if out.began is None and keeper.process.poll() is None:
            raise refusal(link.who, err.before)
        raise link.lost(keeper, err.before + bytes(stderr))

    def expose(self, port: int) -> contextlib.AbstractContextManager[int]:
        """See Transport."""
        return self._link.expose(port)

    def close(self) -> None:
        """End what is still running."""
        self._programs.close()


_: type[Transport] = OpenSshTransport
