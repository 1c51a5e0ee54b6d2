"""The user's trust file: TOML, read as strictly as it decides. DESIGN.md beside this file says what it means."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainctl.errors import TrustError
from trainctl.manifest.files import MAX_FILE_BYTES, UnreadableManifest, open_file
from trainctl.manifest.suggestions import did_you_mean
from trainctl.manifest.toml_text import parse_toml
from trainctl.manifest.tree import ManifestNode
from trainctl.model.address import NAME
from trainctl.model.diagnostics import Diagnostic, Position, error
from trainctl.model.trust import ALL_SECRETS, AllowEntry, HostPattern, PlanPolicy, Trust

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read_trust(path: Path, *, outside: Path | None = None) -> Trust:
    """What the file allows and limits. TrustError says all that is wrong with it.

    It must not lie inside the directory ``outside``: whoever wrote the manifest there would have written it too.
    """
    if outside is not None and path.resolve().is_relative_to(outside.resolve()):
        raise _unsafe(
            path,
            "it is inside the directory of the manifest",
            "If you trust it, name it with --trust.",
        )
    problems: list[Diagnostic] = []
    try:
        root = parse_toml(_text(path), str(path), problems)
    except UnreadableManifest as stop:
        raise TrustError((stop.diagnostic,)) from None
    trust = _TrustFileReader(problems).trust(root, str(path)) if root else Trust(str(path))
    if problems:
        raise TrustError(tuple(problems))
    return trust


def _text(path: Path) -> str:
    """What the file holds; refused where anybody but the user could have written it."""
    try:
        with open_file(path) as file:
            _check_writers(path, os.fstat(file.fileno()), path.resolve().parent)
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        why = f"cannot read it: {problem.strerror}"
        raise _unsafe(path, why, code="unreadable-file") from None
    if len(data) > MAX_FILE_BYTES:
        raise _unsafe(path, "it is larger than 1 MiB", code="file-too-large")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _unsafe(path, "it is not UTF-8 text", code="bad-encoding") from None


def _check_writers(path: Path, found: os.stat_result, directory: Path) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise _unsafe(path, "it is owned by another user", "Create your own trust file.")
    if found.st_mode & _OTHERS_WRITE:
        raise _unsafe(path, "other users can write to it", f"Run: chmod go-w {path}")
    above = directory.stat().st_mode
    if above & _OTHERS_WRITE and not above & stat.S_ISVTX:
        raise _unsafe(path, "other users can replace it", f"Run: chmod go-w {directory}")


def _unsafe(
    path: Path, why: str, detail: str = "", *, code: str = TrustError.default_code
) -> TrustError:
    summary = f"trust file ignored: {why}"
    return TrustError((error(summary, detail, where=Position(str(path)), code=code),))


class _InvalidValue(Exception):
    """A value is not what its key takes."""

    def __init__(self, node: ManifestNode, expected: str) -> None:
        super().__init__(expected)
        self.where = node.where


def _text_of(node: ManifestNode) -> str:
    if not isinstance(node.value, str) or not node.value.strip():
        raise _InvalidValue(node, "text")
    return node.value


def _secret(node: ManifestNode) -> str:
    name = _text_of(node)
    if name != ALL_SECRETS and not NAME.fullmatch(name):
        raise _InvalidValue(node, "the name of a secret, or '*' for all secrets")
    return name


def _flag(node: ManifestNode) -> bool:
    if not isinstance(node.value, bool):
        raise _InvalidValue(node, "true or false")
    return node.value


def _amount(node: ManifestNode) -> float:
    if isinstance(node.value, bool) or not isinstance(node.value, int | float) or node.value < 0:
        raise _InvalidValue(node, "a non-negative number")
    return float(node.value)


def _host(node: ManifestNode) -> HostPattern:
    try:
        return HostPattern.parse(_text_of(node))
    except ValueError:
        raise _InvalidValue(
            node, "a host such as example.com, *.example.com or 10.0.0.1:9000"
        ) from None


def _each(of: Callable[[ManifestNode], Any]) -> Callable[[ManifestNode], tuple[Any, ...]]:
    def read(node: ManifestNode) -> tuple[Any, ...]:
        if not node.items:
            raise _InvalidValue(node, "a list with at least one entry")
        return tuple(of(item) for item in node.items)

    return read


def _commands(node: ManifestNode) -> bool | tuple[tuple[str, ...], ...]:
    if isinstance(node.value, bool):
        return node.value
    if not node.items or not all(item.items for item in node.items):
        raise _InvalidValue(node, "true, or a list of commands such as [['pass', 'show', 'hf']]")
    found: tuple[tuple[str, ...], ...] = _each(_each(_text_of))(node)
    return found


_Keys = Mapping[str, Callable[[ManifestNode], Any]]

_ALLOW: _Keys = {
    "secret": _secret,
    "hosts": _each(_host),
    "commands": _commands,
    "allow_paths_outside_project": _flag,
}
_POLICY: _Keys = {
    "name": _text_of,
    "max_hourly_cost": _amount,
    "providers": _each(_text_of),
    "regions": _each(_text_of),
    "sources": _each(_text_of),
}
TABLES = {"allow": _ALLOW, "policy": _POLICY}
"""The keys of each kind of entry."""


class _TrustFileReader:
    """Reads entries by their tables of keys; all that is wrong goes to ``problems``."""

    def __init__(self, problems: list[Diagnostic]) -> None:
        self._problems = problems

    def trust(self, root: ManifestNode, file: str) -> Trust:
        """The whole file."""
        for name in root.entries:
            if name not in TABLES:
                self._unknown(root, name, TABLES)
        allowed = [
            AllowEntry(**values)
            for node, values in self._entries(root, "allow", needed="secret")
            if self._does_something(node, values, "secret")
        ]
        policies = [
            PlanPolicy(f"{node.where}", **values)
            for node, values in self._entries(root, "policy")
            if self._does_something(node, values, "name")
        ]
        return Trust(file, tuple(allowed), tuple(policies))

    def _entries(
        self, root: ManifestNode, table: str, needed: str | None = None
    ) -> Iterator[tuple[ManifestNode, dict[str, Any]]]:
        node = root.entries.get(table)
        if node is None:
            return
        if not node.items or not all(isinstance(item.value, dict) for item in node.items):
            where = root.key_position(table)
            self._complain(
                where, f"{table} must be a list of tables", f"Use [[{table}]].", "wrong-type"
            )
            return
        for item in node.items:
            values = self._values(item, TABLES[table])
            if needed is not None and needed not in item.entries:
                self._complain(item.where, f"{needed!r} is missing", "Add it.", "missing-key")
            elif values is not None:
                yield item, values

    def _values(self, node: ManifestNode, keys: _Keys) -> dict[str, Any] | None:
        """The values of an entry; None where something is wrong with it."""
        found, before = {}, len(self._problems)
        for name, entry in node.entries.items():
            if name not in keys:
                self._unknown(node, name, keys)
                continue
            try:
                found[name] = keys[name](entry)
            except _InvalidValue as wrong:
                self._complain(wrong.where, f"{name}: expected {wrong}", "", "invalid-value")
        return found if len(self._problems) == before else None

    def _does_something(self, node: ManifestNode, values: Mapping[str, Any], label: str) -> bool:
        if any(value is not False for name, value in values.items() if name != label):
            return True
        others = ", ".join(
            one for table in TABLES.values() if label in table for one in table if one != label
        )
        self._complain(
            node.where, "the entry has no effect", f"Add one of {others}.", "empty-value"
        )
        return False

    def _unknown(self, node: ManifestNode, name: str, keys: Collection[str]) -> None:
        hint = did_you_mean(name, keys)
        self._complain(node.key_position(name), f"unknown key {name!r}", hint, "unknown-key")

    def _complain(self, where: Position, summary: str, detail: str, code: str) -> None:
        self._problems.append(error(summary, detail, where=where, code=code))
