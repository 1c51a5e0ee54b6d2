"""What a look at the declared secrets found, and what storing one did: values for views."""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.desired.values import SecretSpec
from trainctl.jobs.uses import Use
from trainctl.model.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class Used:
    """One use, and whether trust allows the secret to be read and sent there."""

    use: Use
    allowed: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """A declared secret. ``readable`` says that it has a value here that can be used."""

    spec: SecretSpec
    readable: bool
    uses: tuple[Used, ...]
    problems: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class Pushed:
    """A secret that was stored. ``before`` and ``after`` are versions, where the place has any."""

    spec: SecretSpec
    place: str
    before: str | None
    after: str | None
    changed: bool = True
