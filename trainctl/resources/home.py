"""Whose resources these are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    """The manifest's directory, the state's lineage and, for people, who applies and for which project.

    ``withheld`` are files and directories of this machine that are never code.
    """

    directory: Path
    lineage: str
    owner: str
    project: str
    withheld: tuple[Path, ...] = ()
