"""The git work tree of a manifest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from trainctl.errors import TrainctlError
from trainctl.remote.responses import format_exit_status

_GIT_HOOK_VARIABLES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
"""Set by git for hooks; they may refer to another repository."""


def run_git(directory: Path, *args: str, stdin: bytes = b"") -> bytes | None:
    """Run git safely; return None without git or a work tree.

    Disables all programs that the code's repository could configure.
    """
    refuse_bare(directory)
    environ = {name: value for name, value in os.environ.items() if name not in _GIT_HOOK_VARIABLES}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *args],
            input=stdin,
            capture_output=True,
            check=False,
            env={**environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return None
    if done.returncode == 0:
        return done.stdout
    message = done.stderr.decode(errors="replace").strip()
    if "not a git repository" in message or "must be run in a work tree" in message:
        return None
    raise TrainctlError(
        f"git cannot list the code in {directory}",
        message or f"git exited with {format_exit_status(done.returncode)}.",
        code="git-failed",
    )


def is_from_checkout(path: Path, directory: Path) -> bool:
    """Whether a path is in the git work tree, or directory, of the manifest."""
    return path.resolve().is_relative_to(repository_of(directory.resolve()))


def refuse_bare(directory: Path) -> None:
    """Raise TrainctlError in a bare repository: its settings can run programs.

    It may come with the code; git's own check, ``safe.bareRepository``, needs git 2.38.
    """
    for path in (directory.resolve(), *directory.resolve().parents):
        if (path / ".git").exists():
            return
        has_data = (path / "objects").exists() and (path / "refs").exists()
        if (path / "HEAD").exists() and (has_data or (path / "commondir").exists()):
            raise TrainctlError(
                f"{path} is a bare git repository: its settings can run programs",
                "Use another directory as code, or remove HEAD, objects and refs from it.",
                code="git-failed",
            )


def repository_of(directory: Path) -> Path:
    """Return the git work tree of a directory, or the directory itself."""
    parents = (directory, *directory.parents)
    return next((path for path in parents if (path / ".git").exists()), directory)
