"""Why a host can't be logged in to: a short error with its fix, from what ssh says; and one attempt for all who wait for it."""

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
    """Why a host can't be logged in to: what ssh's words then match, the summary after the host's name, and what to do."""

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


def login_error(who: str, said: bytes) -> NodeUnreachable:
    """Why a host can't be logged in to. ``said`` is ssh's standard error."""
    words = printable_tail(said)
    last = words.splitlines()[-1] if words else ""
    for cause in (DENIED, UNKNOWN_HOST, TIMED_OUT, CONNECTION_REFUSED):
        if re.search(cause.words, words):
            return error_for_failure(cause, who, last)
    return NodeUnreachable(f"{who} is unreachable", words or "ssh printed no message.")


def error_for_failure(cause: LoginFailure, who: str, said: str) -> NodeUnreachable:
    """The error for a cause, with the line that told it."""
    return NodeUnreachable(
        f"{who} {cause.summary}", f"{said}\n{cause.fix}".lstrip(), code=cause.code
    )


def key_unknown_error(who: str, login: SshLogin, fingerprint: str) -> NodeUnreachable:
    """First contact without a terminal, or declined by the user."""
    port = f"-p {login.port} " if login.port else ""
    return NodeUnreachable(
        f"unknown host key of {who}: {fingerprint}",
        f"If the key is right, connect once with ssh and confirm it, or pin it: set host_key in the manifest to the output of `ssh-keyscan {port}{login.address}` after the name.",
        code="ssh-unknown-key",
    )


def key_mismatch_error(who: str, now: str, before: str, fix: str) -> NodeUnreachable:
    """The host shows another key than the one that is known."""
    was = f", before {before}" if before else ""
    return NodeUnreachable(
        f"host key of {who} has changed: now {now or 'a key of another type'}{was}",
        f"The connection may be intercepted. If the host was reinstalled: {fix}",
        code="ssh-key-changed",
    )


_FAILURE_TTL_SECONDS = 1.0
"""A command often connects twice in a row: an unreachable host is waited for once. Retries wait longer than this."""


class SharedAttempt:
    """One attempt at a time, under ``lock``. Threads that waited for a failed one, or come just afterwards, get its error."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._failed_at = 0.0
        self._why: NodeUnreachable | None = None

    def ensure(self, is_open: Callable[[], bool], connect: Callable[[], None]) -> None:
        """Connect, if it isn't; NodeUnreachable."""
        began = time.monotonic()
        with self.lock:
            if is_open():
                return
            if self._why is not None and began < self._failed_at + _FAILURE_TTL_SECONDS:
                why = self._why
                raise NodeUnreachable(why.summary, why.detail, code=why.code) from why
            try:
                connect()
            except NodeUnreachable as error:
                self._failed_at, self._why = time.monotonic(), error
                raise
