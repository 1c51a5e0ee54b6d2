"""Login failures with remedies, and shared connection attempts."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainctl.errors import NodeUnreachable
from trainctl.remote.responses import printable_tail
from trainctl_ssh.hosts import SshLogin

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


def key_unknown_error(node_label: str, login: SshLogin, fingerprint: str) -> NodeUnreachable:
    """Return the error for an unconfirmed host key."""
    port = f"-p {login.port} " if login.port else ""
    return NodeUnreachable(
        f"unknown host key of {node_label}: {fingerprint}",
        f"If the key is right, connect once with ssh and confirm it, or pin it: set host_key in the manifest to the output of `ssh-keyscan {port}{login.address}` after the name.",
        code="ssh-unknown-key",
    )


def jump_key_error(node_label: str, jump: str) -> NodeUnreachable:
    """Return the error for a jump host whose key ssh doesn't accept."""
    return NodeUnreachable(
        f"{node_label}: host key verification of the jump host {jump} failed",
        "Connect to it once with ssh, and confirm its key.",
        code="ssh-unknown-key",
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


class SharedAttempt:
    """One connection attempt at a time, under ``lock``, shared by waiting threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._failed_at = 0.0
        self._error: NodeUnreachable | None = None

    def ensure(self, is_open: Callable[[], bool], connect: Callable[[], None]) -> None:
        """Connect unless connected; NodeUnreachable."""
        began = time.monotonic()
        with self.lock:
            if is_open():
                return
            if self._error is not None and began < self._failed_at + _FAILURE_TTL_SECONDS:
                error = self._error
                raise NodeUnreachable(error.summary, error.detail, code=error.code) from error
            try:
                connect()
            except NodeUnreachable as error:
                self._failed_at, self._error = time.monotonic(), error
                raise
