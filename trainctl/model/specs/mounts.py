"""Mount locations: absolute or relative to the working directory, never nested."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from trainctl.model.diagnostics import Diagnostic, Position, error
from trainctl.model.specs.checks import check, validation_error

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_RESERVED_DIRECTORIES = frozenset(
    {"/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/opt", "/root", "/run", "/sbin", "/srv"}
    | {"/tmp", "/usr", "/var"}  # noqa: S108  (compared with, never written to)
)
_RESERVED_TREES = ("/proc", "/sys", "/dev")


class InvalidMount(ValueError):
    """An invalid mount location; ``detail`` says what to write."""

    def __init__(self, summary: str, detail: str) -> None:
        super().__init__(summary)
        self.detail = detail


def normalize_mount(text: str) -> str:
    """Normalize a mount location; raise InvalidMount if it is not allowed."""
    example = "Use for example /app/models/NAME, or weights/NAME below the working directory."
    if _CONTROL.search(text):
        raise InvalidMount("control characters are not allowed in a mount location", example)
    parts = [part for part in text.split("/") if part]
    if not parts:
        raise InvalidMount("the root directory is not a valid mount location", example)
    if ".." in parts or "." in parts:
        raise InvalidMount("'.' and '..' are not allowed in a mount location", example)
    location = ("/" if text.startswith("/") else "") + "/".join(parts)
    if location in _RESERVED_DIRECTORIES or any(
        f"{location}/".startswith(f"{top}/") for top in _RESERVED_TREES
    ):
        raise InvalidMount(f"a mount on {location} would hide system files", example)
    if parts[0].startswith("~"):
        raise InvalidMount("'~' is not expanded in a mount location", example)
    return location


def _mount(text: str) -> str:
    try:
        return normalize_mount(text)
    except InvalidMount as why:
        raise validation_error(str(why), why.detail, code="invalid-mount") from None


MountLocation = Annotated[str, check(_mount, minLength=1)]


def overlaps(first: str, second: str) -> bool:
    """Whether two normalized locations are equal or nested."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A location in a job, a label for messages, and its position in the manifest."""

    location: str
    label: str
    position: Position


def find_overlaps(mounts: Sequence[MountPoint], address: str) -> list[Diagnostic]:
    """Report locations that are equal or nested."""
    problems = []
    outer: MountPoint | None = None
    for mount in sorted(mounts, key=lambda mount: mount.location.split("/")):
        if outer is not None and overlaps(outer.location, mount.location):
            problems.append(_problem(outer, mount, address))
        else:
            outer = mount
    return problems


def _problem(outer: MountPoint, inner: MountPoint, address: str) -> Diagnostic:
    how = (
        f"{outer.label} and {inner.label} have the same mount location {outer.location}"
        if outer.location == inner.location
        else f"{inner.label} at {inner.location} is inside {outer.label} at {outer.location}"
    )
    return error(
        how,
        "Change one mount_location.",
        address=address,
        where=inner.position,
        code="overlapping-mounts",
    )
