"""Declared secrets, for people and for programs. Never their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainctl.jobs.secret_sources import SecretCheck, SecretPush, SecretUseCheck
from trainctl.views.terminal.tables import table

SECRET_COLUMNS = ("name", "from", "source", "version", "readable", "by", "purpose", "to", "allowed")


def secrets_json(checked: Sequence[SecretCheck]) -> dict[str, Any]:
    """The object that ``secrets check --format json`` prints."""
    return {
        "secrets": [
            {
                **_secret_cells(one),
                "uses": [_use_cells(used) for used in one.uses],
                "problems": [problem.to_json() for problem in one.problems],
            }
            for one in checked
        ]
    }


def secret_rows(checked: Sequence[SecretCheck]) -> list[dict[str, Any]]:
    """A row for each use, and one for each unused secret."""
    unused = dict.fromkeys(("by", "purpose", "to", "allowed"))
    return [
        {**_secret_cells(one), **use}
        for one in checked
        for use in [_use_cells(used) for used in one.uses] or [unused]
    ]


def secret_lines(checked: Sequence[SecretCheck], width: int | None = None) -> list[str]:
    """A line for each use; in so many columns if they must fit."""
    if not checked:
        return ["The manifest declares no secrets."]
    headers = ["SECRET", "FROM", "READABLE", "USED BY", "FOR", "SENT TO", "ALLOWED"]
    return table(headers, [*_cells(checked)], width=width, shrinks=frozenset({"FROM"}))


def pushed_lines(pushed: SecretPush) -> list[str]:
    """What was stored, and what to write so that plans show it."""
    if not pushed.changed:
        return [f"Secret {pushed.spec.name!r} already has this value in {pushed.place}."]
    versions = f", version {pushed.after}" if pushed.after else ""
    if pushed.before:
        versions += f", replacing {pushed.before}"
    return [
        f"Stored secret {pushed.spec.name!r} in {pushed.place}{versions}.",
        f"Runs get the new value when they start. To show the change in plans, set secrets.{pushed.spec.name}.version: {_version_hint(pushed)}",
    ]


def _version_hint(pushed: SecretPush) -> str:
    version = pushed.spec.version
    if version is None:
        return "1"
    return str(int(version) + 1) if version.isdecimal() else "another than " + version


def _cells(checked: Sequence[SecretCheck]) -> Iterator[list[str]]:
    for one in checked:
        first = [one.spec.name, f"{one.spec.origin} {one.spec.source}", _bool_text(one.readable)]
        if not one.uses:
            yield [*first, "-", "-", "-", "-"]
        for used in one.uses:
            yield [
                *first,
                used.use.by,
                used.use.purpose,
                _recipient(used),
                _bool_text(used.allowed),
            ]
            first = ["", "", ""]


def _secret_cells(one: SecretCheck) -> dict[str, Any]:
    return {
        "name": one.spec.name,
        "from": one.spec.origin,
        "source": one.spec.source,
        "version": one.spec.version,
        "readable": one.readable,
    }


def _use_cells(used: SecretUseCheck) -> dict[str, Any]:
    return {
        "by": used.use.by,
        "purpose": used.use.purpose,
        "to": _recipient(used),
        "allowed": used.allowed,
    }


def _recipient(used: SecretUseCheck) -> str:
    return str(used.use.to.host) if used.use.to else f"nodes of cluster.{used.use.cluster}"


def _bool_text(value: bool) -> str:
    return "yes" if value else "no"
