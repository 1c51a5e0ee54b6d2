"""What came with a manifest, and so may be a stranger's: its directory, and the git work tree around that."""

from __future__ import annotations

from pathlib import Path

from trainctl.errors import TrainctlError


def is_from_checkout(path: Path, directory: Path) -> bool:
    """Whether what a path leads to came with the manifest of a directory."""
    return path.resolve().is_relative_to(_top(directory.resolve()))


def refuse_bare(directory: Path) -> None:
    """TrainctlError where git would take a directory for a bare repository: one can be checked in, and its settings name programs.

    The check of git itself, ``safe.bareRepository``, is younger than the git of many systems (2.38).
    """
    for place in (directory.resolve(), *directory.resolve().parents):
        if (place / ".git").exists():
            return
        whole = (place / "objects").exists() and (place / "refs").exists()
        if (place / "HEAD").exists() and (whole or (place / "commondir").exists()):
            raise TrainctlError(
                f"{place} is a bare git repository: its settings can run programs",
                "Use another directory as code, or remove HEAD, objects and refs from it.",
                code="git-failed",
            )


def _top(directory: Path) -> Path:
    around = (directory, *directory.parents)
    return next((place for place in around if (place / ".git").exists()), directory)
