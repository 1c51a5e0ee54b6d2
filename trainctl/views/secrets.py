"""Format checks of secrets, without their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainctl.secrets.sources import SecretCheck, SecretPush, SecretUseCheck
from trainctl.views.terminal.text import table

SECRET_COLUMNS = ("name", "from", "source", "version", "readable", "by", "purpose", "to", "allowed")


def secrets_json(checks: Sequence[SecretCheck]) -> dict[str, Any]:
    """Return the JSON of ``secrets check``."""
    return {
        "secrets": [
            {
                **_secret_cells(check),
                "uses": [_use_cells(use_check) for use_check in check.uses],
                "problems": [problem.to_json() for problem in check.problems],
            }
            for check in checks
        ]
    }


def secret_rows(checks: Sequence[SecretCheck]) -> list[dict[str, Any]]:
    """Return the CSV rows: one for each use, or for an unused secret."""
    unused = dict.fromkeys(("by", "purpose", "to", "allowed"))
    return [
        {**_secret_cells(check), **use}
        for check in checks
        for use in [_use_cells(use_check) for use_check in check.uses] or [unused]
    ]


def secret_lines(checks: Sequence[SecretCheck], width: int | None = None) -> list[str]:
    """Return a table with a line for each use."""
    if not checks:
        return ["The manifest declares no secrets."]
    headers = ["SECRET", "FROM", "READABLE", "USED BY", "FOR", "SENT TO", "ALLOWED"]
    cells: list[list[str]] = []
    for check in checks:
        first = [
            check.spec.name,
            f"{check.spec.origin} {check.spec.source}",
            _WORDS[check.readable],
        ]
        for use in [_use_cells(use_check) for use_check in check.uses]:
            cells.append([*first, use["by"], use["purpose"], use["to"], _WORDS[use["allowed"]]])
            first = ["", "", ""]
        if not check.uses:
            cells.append([*first, "-", "-", "-", "-"])
    return table(headers, cells, width=width, shrinks={"FROM"})


def pushed_lines(pushed: SecretPush) -> list[str]:
    """Return what was stored, and the version to declare."""
    if not pushed.changed:
        return [f"Secret {pushed.spec.name!r} already has this value in {pushed.place}."]
    versions = f", version {pushed.after}" if pushed.after else ""
    if pushed.before:
        versions += f", replacing {pushed.before}"
    old = pushed.spec.version or "0"
    new = str(int(old) + 1) if old.isdecimal() else "another than " + old
    return [
        f"Stored secret {pushed.spec.name!r} in {pushed.place}{versions}.",
        f"Runs get the new value when they start. To show the change in plans, set secrets.{pushed.spec.name}.version: {new}",
    ]


def _secret_cells(check: SecretCheck) -> dict[str, Any]:
    return {
        "name": check.spec.name,
        "from": check.spec.origin,
        "source": check.spec.source,
        "version": check.spec.version,
        "readable": check.readable,
    }


def _use_cells(use_check: SecretUseCheck) -> dict[str, Any]:
    use = use_check.use
    return {
        "by": use.by,
        "purpose": use.purpose,
        "to": str(use.to.host) if use.to else f"nodes of cluster.{use.cluster}",
        "allowed": use_check.allowed,
    }


_WORDS = {True: "yes", False: "no"}
