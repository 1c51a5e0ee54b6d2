"""Leases on addresses: identity of holders, renewal, detection of dead holders."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from trainctl.base.clock import Clock
from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.lease import Liveness
from trainctl.base.system import processes
from trainctl.errors import LockHeld
from trainctl.ledger.state import Intent, LeaseHolder, State

_MAX_LENGTH = 256
_COMMIT = compile_lazily(r"[0-9a-f]{7,64}")
_SERVER = compile_lazily(r"https?://([\w.-]+)")
_PIPELINE = compile_lazily(r"https?://[^\s@]{1,300}\d")


@dataclass(frozen=True, slots=True)
class EntryAuthor:
    """Author of entries: ``user@host``, or the user that started a pipeline ``@`` its server.

    ``commit`` is the one that the CI system names, else the head of the work tree of git that the process is in;
    ``pipeline``, the URL of the CI run, is None outside of CI.
    """

    actor: str
    commit: str | None = None
    pipeline: str | None = None


def entry_author(environ: Mapping[str, str]) -> EntryAuthor:
    """Return the author by the variables of GitHub Actions and GitLab CI, else the user and host.

    Anyone can set these variables: they are for display only. Values that are not printable, or longer than 256
    characters, are ignored.
    https://docs.github.com/en/actions/reference/workflows-and-actions/variables
    https://docs.gitlab.com/ci/variables/predefined_variables/
    """

    def get(name: str) -> str:
        value = environ.get(name, "").strip()
        return value if len(value) <= _MAX_LENGTH and value.isprintable() else ""

    if get("GITHUB_ACTIONS"):
        user = get("GITHUB_TRIGGERING_ACTOR") or get("GITHUB_ACTOR")
        server, commit = get("GITHUB_SERVER_URL"), get("GITHUB_SHA")
        pipeline = f"{server}/{get('GITHUB_REPOSITORY')}/actions/runs/{get('GITHUB_RUN_ID')}"
    elif get("GITLAB_CI"):
        user, server = get("GITLAB_USER_LOGIN"), get("CI_SERVER_URL")
        commit, pipeline = get("CI_COMMIT_SHA"), get("CI_JOB_URL")
    else:
        return EntryAuthor(_user_at_host(), _head_commit())
    host = _SERVER.match(server)
    return EntryAuthor(
        f"{user}@{host[1]}" if user and host else _user_at_host(),
        commit if _COMMIT.fullmatch(commit) else None,
        pipeline if _PIPELINE.fullmatch(pipeline) else None,
    )


@cache
def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


@cache
def _head_commit() -> str | None:
    """Return the commit of the work tree of git; None if there is none. Read from files, as a program takes longer.

    https://git-scm.com/docs/gitrepository-layout
    """
    here = Path.cwd()
    git = next((d / ".git" for d in (here, *here.parents) if (d / ".git").exists()), None)
    try:
        if git is None:
            return None
        if git.is_file():  # of a linked work tree or a submodule
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            link = git / "commondir"
            git, ref = git / link.read_text().strip() if link.exists() else git, head[5:]
            if (git / ref).exists():
                head = (git / ref).read_text().strip()
            else:
                packed = (git / "packed-refs").read_text().splitlines()
                head = next((line.split()[0] for line in packed if line.endswith(f" {ref}")), "")
    except (OSError, UnicodeDecodeError):
        return None
    return head if _COMMIT.fullmatch(head) else None


def current_holder() -> LeaseHolder:
    """Return this process as a holder; not cached, as a forked child differs."""
    by = entry_author(os.environ)
    return LeaseHolder(*processes.describe_process(), by.actor, by.commit, by.pipeline)


def is_dead(holder: LeaseHolder) -> bool | None:
    """Whether the holder's process is dead; None if unknown, as on other machines."""
    return processes.is_dead(
        processes.Process(holder.machine, holder.boot, holder.pid, holder.started)
    )


@dataclass(frozen=True, slots=True)
class OpenLease:
    """A change without an outcome; ``interrupted``: whether its process has ended, None if unknown."""

    intent: Intent
    interrupted: bool | None


def open_leases(state: State) -> list[OpenLease]:
    """Return the open leases of a state by address."""
    return [
        OpenLease(intent, is_dead(intent.holder))
        for _, intent in sorted(state.open_intents.items())
    ]


class LeaseMonitor:
    """Detects leases that are over because the holder is dead or stopped renewing."""

    def __init__(self, me: LeaseHolder, clock: Clock, knows: Callable[[str], bool]) -> None:
        self._me = me
        self._knows = knows
        self._liveness = Liveness(clock.elapsed)

    def is_over(self, intent: Intent, read_at: float) -> bool:
        """Whether the lease of an intent is over, by a read of the log at ``read_at``."""
        if intent.holder == self._me:
            return not self._knows(intent.id)
        if is_dead(intent.holder):
            return True
        return self._liveness.is_stale(intent.id, intent.renewals, read_at)


def lock_held_error(intent: Intent) -> LockHeld:
    """Create the error for an address locked by another process."""
    last = max(intent.time, intent.renewed)
    return LockHeld(
        f"{intent.address} is locked by {intent.holder.actor} ({intent.action}) since {_clock_time(intent.time)}, until {_clock_time(last + intent.lease_seconds)} unless renewed",
        f"Wait for the lock with --lock-timeout 1m. If that command no longer runs: trainctl force-unlock {intent.id}",
        address=str(intent.address),
    )


def _clock_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
