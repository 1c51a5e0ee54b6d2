"""What the connections of ssh and paramiko share: attempts, login failures with remedies, host keys."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import re
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainctl.base.filesystem.files import write_atomic
from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import NodeUnreachable
from trainctl.plugin_api.provider import Confirm
from trainctl.remote.responses import printable_tail
from trainctl_ssh.hosts import SshLogin

_SCAN_SECONDS = 60
_FINGERPRINT = compile_lazily(r"SHA256:[A-Za-z0-9+/]{43}")
_OFFENDING = compile_lazily(r"Offending \S+ key in (.+):(\d+)")
_REMOVE = compile_lazily(r"^\s*(ssh-keygen .*-R .*)$", re.MULTILINE)
UNKNOWN_KEY = "Host key verification failed"
CHANGED_KEY = "REMOTE HOST IDENTIFICATION HAS CHANGED"


@dataclass(frozen=True, slots=True)
class LoginFailure:
    """A cause of failure: pattern of ssh's messages, summary, remedy and error code."""

    words: str
    summary: str
    fix: str
    code: str


DENIED = LoginFailure(
    r"Permission denied \(|Too many authentication failures",
    "rejected the offered keys",
    "Add an authorized key to the SSH agent, or set identity_file. Check the login name (user).",
    code="ssh-permission-denied",
)
UNKNOWN_HOST = LoginFailure(
    r"Could not resolve hostname|Name or service not known",
    "has an unknown address",
    "Correct the host name, or set address of the host.",
    code="ssh-host-not-found",
)
TIMED_OUT = LoginFailure(
    r"timed out|No route to host|Network is unreachable|is down",
    "timed out",
    "Check that the host is on and not behind a firewall. For a slow host, set connect_timeout.",
    code="ssh-timeout",
)
CONNECTION_REFUSED = LoginFailure(
    r"Connection refused",
    "refused the connection",
    "Start sshd on the host, or correct its port.",
    code="ssh-connection-refused",
)


def login_error(node_label: str, stderr: bytes) -> NodeUnreachable:
    """Return the error for ssh's standard error."""
    words = printable_tail(stderr)
    last = words.splitlines()[-1] if words else ""
    for cause in (DENIED, UNKNOWN_HOST, TIMED_OUT, CONNECTION_REFUSED):
        if re.search(cause.words, words):
            return error_for_failure(cause, node_label, last)
    return NodeUnreachable(f"{node_label} is unreachable", words or "ssh printed no message.")


def error_for_failure(cause: LoginFailure, node_label: str, stderr: str) -> NodeUnreachable:
    """Return the error for a cause; ``stderr`` is the matching line."""
    return NodeUnreachable(
        f"{node_label} {cause.summary}", f"{stderr}\n{cause.fix}".lstrip(), code=cause.code
    )


def key_mismatch_error(node_label: str, now: str, before: str, fix: str) -> NodeUnreachable:
    """Return the error for a changed host key."""
    was = f", before {before}" if before else ""
    return NodeUnreachable(
        f"host key of {node_label} has changed: now {now or 'a key of another type'}{was}",
        f"The connection may be intercepted. If the host was reinstalled: {fix}",
        code="ssh-key-changed",
    )


_FAILURE_TTL_SECONDS = 1.0
"""How long a failure is reused: a command often connects twice in a row. Retries wait longer."""


GREETING_SECONDS = 30
"""Time of an account's shell start-up files, in addition to that of the connection."""
CLOSE_SECONDS = 2
"""Longest wait for an attempt or a process of the connection to end."""
_BY_JUMP_HOST = threading.BoundedSemaphore(8)
"""Logins at once that may lead over a jump host: sshd drops more than ten that aren't authenticated (MaxStartups)."""
_CONFIGURATIONS = ("~/.ssh/config", "/etc/ssh/ssh_config", "/etc/ssh/ssh_config.d")
_PROXY = compile_lazily(r"(?im)^\s*(?:proxyjump|proxycommand)\b")
_OWN_PROXY = compile_lazily(r"(?im)^\s*(?:proxyjump|proxycommand|include)\b")


@functools.cache
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
    """Connection to one host, opened on demand and after a loss; thread-safe.

    One attempt at a time, under ``_lock``, is shared by waiting threads.
    """

    def __init__(
        self, login: SshLogin, node_label: str, environ: Mapping[str, str], confirm: Confirm
    ) -> None:
        self.login = login
        self.node_label = node_label
        self.environ = environ
        self._confirm = confirm
        self._lock = threading.RLock()
        self._failed_at = 0.0
        self._error: NodeUnreachable | None = None

    def _ensure(self, is_open: Callable[[], bool], connect: Callable[[], None]) -> None:
        """Connect unless connected; NodeUnreachable."""
        began = time.monotonic()
        with self._lock:
            if is_open():
                return
            if self._error is not None and began < self._failed_at + _FAILURE_TTL_SECONDS:
                error = self._error
                raise NodeUnreachable(error.summary, error.detail, code=error.code) from error
            proxied = self.login.jump or has_proxy()
            try:
                with _BY_JUMP_HOST if proxied else contextlib.nullcontext():
                    connect()
            except NodeUnreachable as error:
                self._failed_at, self._error = time.monotonic(), error
                raise

    def _confirm_key(self, shown: str) -> None:
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

    def _silent_error(self) -> NodeUnreachable:
        return NodeUnreachable(
            f"{self.node_label} does not respond after login",
            "Check the shell start-up files of the account, and that its login shell is a shell.",
            code="ssh-timeout",
        )

    def _lost_error(self, messages: bytes) -> NodeUnreachable:
        """Return the error for a call whose connection was lost."""
        return NodeUnreachable(f"{self.node_label}: connection lost", printable_tail(messages))


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint as OpenSSH prints it, ``SHA256:`` and unpadded base64."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def parse_fingerprint(text: str) -> str:
    """Return the fingerprint of a key ``[NAMES] TYPE BASE64``; empty if there is none."""
    for word in text.split():
        if word.startswith("AAAA"):
            try:
                return fingerprint(base64.b64decode(word))
            except ValueError:
                return ""
    return ""


def key_changed_error(node_label: str, login: SshLogin, stderr: str) -> NodeUnreachable:
    """Return the error for a changed host key, from ssh's messages."""
    match = _FINGERPRINT.search(stderr)
    now = match.group() if match else ""
    if login.host_key:
        fix = "set host_key in the manifest to the new key."
        return key_mismatch_error(node_label, now, parse_fingerprint(login.host_key), fix)
    offending = _OFFENDING.search(stderr)
    remove = _REMOVE.search(stderr)
    fix = remove.group(1).strip() if remove else f"ssh-keygen -R {login.address}"
    return key_mismatch_error(node_label, now, _line(offending) if offending else "", fix)


def _line(offending: re.Match[str]) -> str:
    try:
        lines = Path(offending.group(1)).read_text(errors="replace").splitlines()
        return parse_fingerprint(lines[int(offending.group(2)) - 1])
    except (OSError, IndexError):
        return ""


def scan_host_key(
    ssh: Sequence[str], destination: Sequence[str], environ: Mapping[str, str]
) -> str:
    """Return the known-hosts line of a host's present key; empty without one.

    No key of the user's is offered to the unknown host.
    """
    with tempfile.TemporaryDirectory(prefix="trainctl-") as directory:
        path = Path(directory) / "known_hosts"
        options = (
            f"UserKnownHostsFile={path}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=accept-new",
            "UpdateHostKeys=no",
            "PreferredAuthentications=none",
            "ControlPath=none",
        )
        words = [word for option in options for word in ("-o", option)]
        subprocess.run(
            [ssh[0], *words, *ssh[1:], *destination, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environ,
            start_new_session=True,
            timeout=_SCAN_SECONDS,
            check=False,
        )
        return path.read_text() if path.exists() else ""


def known_hosts_files(named: str) -> list[Path]:
    """Split a ``UserKnownHostsFile`` value of ``ssh -G``, which omits quotes."""
    names = re.split(r"\s+(?=[/~])", named.replace('"', "").strip())
    return [Path(name).expanduser() for name in names]


def append_known_host(line: str, known_hosts: Path) -> None:
    """Append a line to a known-hosts file by a single write."""
    known_hosts.parent.mkdir(0o700, parents=True, exist_ok=True)
    descriptor = os.open(known_hosts, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "rb+", buffering=0) as stream:
        end = stream.seek(0, os.SEEK_END)
        last = os.pread(descriptor, 1, end - 1) if end else b"\n"
        text = line if line.endswith("\n") else f"{line}\n"
        stream.write((b"" if last == b"\n" else b"\n") + text.encode())


_MAX_SOCKET_PATH = 107 - 17 - len("/12345678")
"""Socket paths are limited to 107 bytes (unix(7)); ssh appends 17 for a temporary name."""
PIN = "trainctl-pinned"
"""HostKeyAlias under which ``pinned_known_hosts`` writes a key."""


def private_directory(environ: Mapping[str, str]) -> Path:
    """Return a private directory with a short path, if possible always the same."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    shared = f"/tmp/trainctl-{os.getuid()}"  # noqa: S108 - checked before use
    for path in map(Path, (*((f"{runtime}/trainctl",) if runtime else ()), shared)):
        with contextlib.suppress(OSError):
            if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
                path.mkdir(0o700, exist_ok=True)
                status = path.lstat()
                is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
                if is_own and not status.st_mode & 0o077:
                    return path
    return Path(tempfile.mkdtemp(prefix="trainctl-", dir="/tmp"))


def pinned_known_hosts(directory: Path, host_key: str) -> Path:
    """Return a known-hosts file with this key only, named by its content."""
    name = hashlib.sha256(host_key.encode()).hexdigest()[:16]
    path = directory / f"pin-{name}"
    if not path.exists():
        write_atomic(path, f"{PIN} {host_key}\n".encode(), durable=False)
    return path
