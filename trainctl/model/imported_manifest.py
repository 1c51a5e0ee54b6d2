"""A manifest made from a config of the hosted service, with comments and notes about fields."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.address import slug


class ImportOutcome(StrEnum):
    """What became of a field. With ``DIFFERENT``, runs would do something else than on the service."""

    CHANGED = "changed"
    MISSING = "missing"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class ImportNote:
    """What became of a field, which has its name in the SDK."""

    outcome: ImportOutcome
    field: str
    text: str


@dataclass(slots=True)
class ImportedManifest:
    """A manifest; ``carried`` has the fields with the same meaning, and a short form of each value.

    ``variables`` has the environment variable of the job that gets a secret, ``secrets`` the variable of this machine
    that each used secret is read from.
    """

    project: str
    job: str
    variables: Mapping[str, str] = field(default_factory=dict)
    tree: dict[str, Any] = field(default_factory=dict)
    comments: dict[tuple[str | int, ...], str] = field(default_factory=dict)
    carried: dict[str, str] = field(default_factory=dict)
    notes: list[ImportNote] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)

    @property
    def runs_alike(self) -> bool:
        """Whether a run does the same as on the service."""
        return all(note.outcome is not ImportOutcome.DIFFERENT for note in self.notes)

    def note(self, outcome: ImportOutcome, name: str, text: str, *at: str | int) -> None:
        """Add a note, and a comment above the value at a path in the job."""
        self.notes.append(ImportNote(outcome, name, text))
        prefix = "" if outcome is ImportOutcome.CHANGED else f"Not carried over: {name}. "
        self.comment(f"{prefix}{text}", *at)

    def comment(self, text: str, *at: str | int) -> None:
        """Add a comment above the value at a path in the job."""
        path = ("jobs", self.job, *at)
        self.comments[path] = f"{self.comments[path]} {text}" if path in self.comments else text

    def secret(self, name: str) -> str:
        """Declare a secret, as the environment variable that the job gets it in; return its name."""
        known = slug(name)
        default = "".join(char if char.isalnum() else "_" for char in name).upper()
        self.secrets[known] = self.variables.get(name, default)
        return known
