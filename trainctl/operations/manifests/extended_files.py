"""Fetch the pinned files that manifests extend, once, into the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.errors import SourceError, StorageError
from trainctl.manifest.files import PinnedFile
from trainctl.model.trust import SecretDestination, Trust, host_of_url
from trainctl.operations.directories import cache_home

_SECONDS = 60
_SECRET = "git"  # noqa: S105 (a name in the trust file)


def fetch(file: PinnedFile, environ: Mapping[str, str], trust: Trust, *, offline: bool) -> Path:
    """Return the local copy of a file; fetch it if needed and not ``offline``.

    git uses the user's credentials only for hosts that may receive the secret ``git`` by the trust file.
    SourceError if it can't be fetched, PermissionDenied for SSH to another host.
    """
    key = hashlib.sha256(repr(file).encode()).hexdigest()[:32]
    copy = make_directory(cache_home(environ) / "extended") / key
    if copy.is_file():
        return copy
    if offline:
        raise StorageError(f"{file.name} is not fetched yet", "To fetch it, run: trainctl plan")
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_DIR")}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:ssh", "LC_ALL": "C"}
    env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    to = SecretDestination(host_of_url(file.url))
    if file.url.startswith("ssh:"):
        trust.require_host(_SECRET, to)
    with tempfile.TemporaryDirectory() as repository:
        if not trust.may_send(_SECRET, to):  # without credential helpers, ~/.netrc and headers
            env |= {"HOME": repository, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        at = ("-C", repository)
        _git(env, *at, "init", "-q", "--bare", "--template=")
        _git(env, *at, "fetch", "-q", "--depth=1", "--no-tags", "--", file.url, file.commit)
        data = _git(env, *at, "cat-file", "blob", f"{file.commit}:{file.path}")
    write_atomic(copy, data)
    return copy


def _git(env: Mapping[str, str], *args: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *args],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_SECONDS,
        )  # fmt: skip
    except (FileNotFoundError, subprocess.TimeoutExpired) as problem:
        raise SourceError(f"git can't run: {problem}", "Install git, or check the URL.") from None
    if done.returncode:
        raise SourceError(
            "git can't fetch the extended file",
            done.stderr.decode(errors="replace").strip()[-500:],
            code="git-failed",
        )
    return done.stdout
