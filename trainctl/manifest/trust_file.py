"""Parser of the user's trust file (TOML); see DESIGN.md."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, get_type_hints

from trainctl.base.units import parse_size
from trainctl.errors import TrustError
from trainctl.manifest.files import MAX_FILE_BYTES, UnreadableManifest, open_file
from trainctl.manifest.text import parse_toml
from trainctl.manifest.tree import ManifestNode
from trainctl.model.address import NAME
from trainctl.model.diagnostics import Diagnostic, Position, did_you_mean, error
from trainctl.model.trust import (
    ALL_SECRETS,
    AllowEntry,
    HostPattern,
    PlanPolicy,
    PolicyLevel,
    PolicyWaiver,
    Trust,
)

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read_trust(path: Path, *, outside: Path | None = None, tables: Collection[str] = ()) -> Trust:
    """Read the trust file; raise TrustError with all problems.

    It must not be inside ``outside``, the manifest's directory or its checkout, where the manifest's author could have
    written it. ``tables``: those that it may have, by default all.
    """
    if outside is not None and path.resolve().is_relative_to(outside.resolve()):
        advice = "If you trust it, name it with --trust."
        if tables:
            advice = f"Use the base branch's: git show origin/main:{path.name} > ../{path.name}"
        raise _unsafe(path, "it is inside the directory of the manifest", advice)
    problems: list[Diagnostic] = []
    try:
        root = parse_toml(_text(path), str(path), problems)
    except UnreadableManifest as stop:
        raise TrustError((stop.diagnostic,)) from None
    reader = _TrustFileReader(problems)
    trust = reader.trust(root, str(path), tables or TABLES) if root else Trust(str(path))
    if problems:
        raise TrustError(tuple(problems))
    return trust


def _text(path: Path) -> str:
    """Read the file; refuse it if other users could have written it."""
    try:
        with open_file(path) as file:
            status, directory = os.fstat(file.fileno()), path.resolve().parent
            if status.st_uid not in (os.geteuid(), 0):
                raise _unsafe(path, "it is owned by another user", "Create your own trust file.")
            if status.st_mode & _OTHERS_WRITE:
                raise _unsafe(path, "other users can write to it", f"Run: chmod go-w {path}")
            above = directory.stat().st_mode
            if above & _OTHERS_WRITE and not above & stat.S_ISVTX:
                raise _unsafe(path, "other users can replace it", f"Run: chmod go-w {directory}")
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


def _unsafe(
    path: Path, why: str, detail: str = "", *, code: str = TrustError.default_code
) -> TrustError:
    summary = f"trust file ignored: {why}"
    return TrustError((error(summary, detail, where=Position(str(path)), code=code),))


class _InvalidValue(Exception):
    """A value of the wrong type or form."""

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


def _parsed(parse: Callable[[str], Any], expected: str) -> Callable[[ManifestNode], Any]:
    """Return a reader of text in some form."""

    def read(node: ManifestNode) -> Any:
        try:
            return parse(_text_of(node))
        except ValueError:
            raise _InvalidValue(node, expected) from None

    return read


_host = _parsed(HostPattern.parse, "a host such as example.com, *.example.com or 10.0.0.1:9000")
_day = _parsed(lambda text: date.fromisoformat(text).isoformat(), 'a date such as "2030-12-31"')


def _list_of(item: Callable[[ManifestNode], Any]) -> Callable[[ManifestNode], tuple[Any, ...]]:
    def read(node: ManifestNode) -> tuple[Any, ...]:
        if not node.items:
            raise _InvalidValue(node, "a list with at least one entry")
        return tuple(map(item, node.items))

    return read


def _commands(node: ManifestNode) -> bool | tuple[tuple[str, ...], ...]:
    if isinstance(node.value, bool):
        return node.value
    if not node.items or not all(item.items for item in node.items):
        raise _InvalidValue(node, "true, or a list of commands such as [['pass', 'show', 'hf']]")
    commands: tuple[tuple[str, ...], ...] = _list_of(_list_of(_text_of))(node)
    return commands


_Keys = Mapping[str, Callable[[ManifestNode], Any]]

_ALLOW: _Keys = {
    "secret": _secret,
    "hosts": _list_of(_host),
    "commands": _commands,
    "allow_paths_outside_project": _flag,
}
_READERS: Mapping[Any, Callable[[ManifestNode], Any]] = {
    str | None: _text_of,
    float | None: _amount,
    tuple[str, ...] | None: _list_of(_text_of),
    int | None: _parsed(parse_size, 'a size such as "100GiB"'),
    bool | None: _flag,
    PolicyLevel: _parsed(PolicyLevel, "advisory or mandatory"),
}
_POLICY: _Keys = {
    name: _READERS[kind] for name, kind in get_type_hints(PlanPolicy).items() if kind in _READERS
}
_WAIVER: _Keys = {"policy": _text_of, "until": _day, "reason": _text_of}
_LABELS = frozenset({"secret", "name", "level", "message"})
_TERRAFORM: _Keys = {"modules": _list_of(_text_of)}
TABLES = {"allow": _ALLOW, "policy": _POLICY, "waiver": _WAIVER, "terraform": _TERRAFORM}
"""Keys and parsers of each kind of entry."""


class _TrustFileReader:
    """Parses entries, adding to ``problems``."""

    def __init__(self, problems: list[Diagnostic]) -> None:
        self._problems = problems

    def trust(self, root: ManifestNode, file: str, tables: Collection[str]) -> Trust:
        """Parse all entries."""
        for name in root.entries:
            if name not in tables:
                self._unknown(root, name, tables)
        allowed = [
            AllowEntry(**values)
            for node, values in self._entries(root, "allow", needed=("secret",))
            if self._has_effect(node, values)
        ]
        policies = [
            (node, values)
            for node, values in self._entries(root, "policy")
            if self._has_effect(node, values)
        ]
        names = {values.get("name") for _, values in policies}
        waivers: dict[str, PolicyWaiver] = {}  # of several with a name, the last to expire
        for node, values in self._entries(root, "waiver", needed=tuple(_WAIVER)):
            name, waiver = values["policy"], PolicyWaiver(values["until"], values["reason"])
            if name not in names:
                advice = "Waivers must be in the file of the policy."
                self._report(node.where, f"no policy is named {name!r}", advice, "invalid-value")
            if name not in waivers or waivers[name].until < waiver.until:
                waivers[name] = waiver
        limits = (
            PlanPolicy(str(node.where), waiver=waivers.get(values.get("name", "")), **values)
            for node, values in policies
        )
        modules = [
            source
            for _, values in self._entries(root, "terraform", needed=("modules",))
            for source in values["modules"]
        ]
        return Trust(file, tuple(allowed), tuple(limits), tuple(modules))

    def _entries(
        self, root: ManifestNode, table: str, needed: Collection[str] = ()
    ) -> Iterator[tuple[ManifestNode, dict[str, Any]]]:
        node = root.entries.get(table)
        if node is None:
            return
        if not node.items or not all(isinstance(item.value, dict) for item in node.items):
            where = root.key_position(table)
            self._report(
                where, f"{table} must be a list of tables", f"Use [[{table}]].", "wrong-type"
            )
            return
        for item in node.items:
            values = self._values(item, TABLES[table])
            missing = [name for name in needed if name not in item.entries]
            if missing:
                self._report(item.where, f"{missing[0]!r} is missing", "Add it.", "missing-key")
            elif values is not None:
                yield item, values

    def _values(self, node: ManifestNode, keys: _Keys) -> dict[str, Any] | None:
        """Parse an entry; return None if invalid."""
        values, before = {}, len(self._problems)
        for name, entry in node.entries.items():
            if name not in keys:
                self._unknown(node, name, keys)
                continue
            try:
                values[name] = keys[name](entry)
            except _InvalidValue as invalid:
                self._report(invalid.where, f"{name}: expected {invalid}", "", "invalid-value")
        return values if len(self._problems) == before else None

    def _has_effect(self, node: ManifestNode, values: Mapping[str, Any]) -> bool:
        if any(value is not False for name, value in values.items() if name not in _LABELS):
            return True
        table = _ALLOW if "secret" in values else _POLICY
        others = ", ".join(key for key in table if key not in _LABELS)
        self._report(node.where, "the entry has no effect", f"Add one of {others}.", "empty-value")
        return False

    def _unknown(self, node: ManifestNode, name: str, keys: Collection[str]) -> None:
        hint = did_you_mean(name, keys)
        self._report(node.key_position(name), f"unknown key {name!r}", hint, "unknown-key")

    def _report(self, where: Position, summary: str, detail: str, code: str) -> None:
        self._problems.append(error(summary, detail, where=where, code=code))
