"""From what ssh says when it can't log in to a short error with its fix."""

from __future__ import annotations

import re

from trainctl.errors import NodeUnreachable
from trainctl.remote.answers import readable
from trainctl_ssh.hosts import Login

UNKNOWN_KEY = "Host key verification failed"
CHANGED_KEY = "REMOTE HOST IDENTIFICATION HAS CHANGED"


def refusal(who: str, login: Login, said: bytes) -> NodeUnreachable:
    """Why a host can't be logged in to. ``said`` is ssh's standard error."""
    words = readable(said)
    last = words.splitlines()[-1] if words else ""
    for needle, why in _CAUSES:
        if re.search(needle, words):
            return why(who, login, last)
    return NodeUnreachable(f"{who} can't be reached", words or "ssh said nothing.")


def denied(who: str, login: Login, last: str) -> NodeUnreachable:
    """The host is there, and doesn't take any of the keys that were offered."""
    account = f"user {login.user}" if login.user else "this user"
    return NodeUnreachable(
        f"{who} refuses {account}",
        f"{last}\nPut a key that it accepts into the agent, or name it: identity_file: PATH.".lstrip(),
        code="ssh-denied",
    )


def nameless(who: str, login: Login, last: str) -> NodeUnreachable:
    """Nobody knows the address."""
    return NodeUnreachable(
        f"{who}: no host is known as {login.address}",
        f"{last}\nCorrect the name, or write address: of the host.".lstrip(),
        code="ssh-no-such-host",
    )


def late(who: str, login: Login, last: str) -> NodeUnreachable:
    """Nothing answers."""
    return NodeUnreachable(
        f"{who} doesn't answer",
        f"{last}\nIt may be off, or behind a firewall. A slow one needs connect_timeout: SECONDS.".lstrip(),
        code="ssh-no-answer",
    )


def closed(who: str, login: Login, last: str) -> NodeUnreachable:
    """The host is there, and nothing listens."""
    return NodeUnreachable(
        f"{who} takes no connection",
        f"{last}\nStart its sshd, or write the right port: of the host.".lstrip(),
        code="ssh-refused",
    )


_CAUSES = (
    (r"Permission denied \(|Too many authentication failures", denied),
    (r"Could not resolve hostname|Name or service not known", nameless),
    (r"timed out|No route to host|Network is unreachable|is down", late),
    (r"Connection refused", closed),
)


def key_not_known(who: str, login: Login, fingerprint: str) -> NodeUnreachable:
    """First contact where nobody could be asked, or somebody said no."""
    port = f"-p {login.port} " if login.port else ""
    return NodeUnreachable(
        f"{who} is not known yet: its key is {fingerprint}",
        "If that is right, connect once with ssh and say yes, or pin the key: host_key: in the manifest, "
        f"with what `ssh-keyscan {port}{login.address}` prints after the name.",
        code="ssh-unknown-key",
    )


def key_changed(who: str, now: str, before: str, fix: str) -> NodeUnreachable:
    """The host shows another key than the one that is known."""
    was = f", and it was {before}" if before else ""
    return NodeUnreachable(
        f"{who} has another key than before: now {now or 'one of another type'}{was}",
        f"Somebody may be in between. If the host was installed anew: {fix}",
        code="ssh-key-changed",
    )
