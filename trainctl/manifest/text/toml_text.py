"""TOML parser. Positions are key paths: the library has lines only for errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

import tomli

from trainctl.manifest.files import UnreadableManifest, lines_of, unreadable
from trainctl.manifest.text.yaml_text import repeated_key_error, too_deep_error
from trainctl.manifest.tree import (
    MAX_DEPTH,
    MAX_NODES,
    ManifestNode,
    Path,
    SourceFloat,
    list_node,
    mapping_node,
    parse_finite,
    require_encodable,
    scalar_node,
)
from trainctl.model.diagnostics import Diagnostic, Position, error


def parse_toml(text: str, file: str, problems: list[Diagnostic]) -> ManifestNode | None:
    """Parse a text, None if empty; raise UnreadableManifest if invalid."""
    try:
        document = tomli.loads(text, parse_float=_number)
    except RecursionError:
        raise UnreadableManifest(too_deep_error(Position(file))) from None
    except tomli.TOMLDecodeError as problem:
        raise UnreadableManifest(_syntax(problem, file, lines_of(text, file))) from None
    except ValueError as problem:
        raise unreadable(f"invalid TOML: {problem}", where=Position(file), code="syntax") from None
    if not document:
        return None
    root = _node(document, (), file)
    if root.size > MAX_NODES:
        raise unreadable(
            "the file is too large",
            f"A file can have at most {MAX_NODES} values; split it.",
            where=root.where,
            code="file-too-large",
        )
    return root


def _number(text: str) -> float:
    """Parse a float; ``_node``, which knows positions, rejects non-finite numbers."""
    try:
        return parse_finite(text.replace("_", ""))
    except ValueError:
        return float(text)


def _node(value: Any, path: Path, file: str) -> ManifestNode:
    """Convert the value at a path; raise UnreadableManifest if too deep or not JSON."""
    where = _place(file, path)
    if len(path) >= MAX_DEPTH:
        raise UnreadableManifest(too_deep_error(where))
    if isinstance(value, dict):
        entries = {
            _text(key, where): _node(entry, (*path, key), file) for key, entry in value.items()
        }
        return mapping_node(entries, {key: _place(file, (*path, key)) for key in value}, where)
    if isinstance(value, list):
        items = [_node(item, (*path, index), file) for index, item in enumerate(value)]
        return list_node(items, where)
    if isinstance(value, datetime | date | time):
        raise _unsupported(
            "dates are not supported in a manifest", where, f'Put it in quotes: "{value}".'
        )
    if isinstance(value, float) and not isinstance(value, SourceFloat):
        raise _unsupported("infinity and NaN are not allowed in a manifest", where)
    return scalar_node(_text(value, where) if isinstance(value, str) else value, where)


def _text(value: str, where: Position) -> str:
    try:
        return require_encodable(value)
    except ValueError as why:
        raise _unsupported(str(why), where) from None


def _unsupported(summary: str, where: Position, detail: str = "") -> UnreadableManifest:
    return unreadable(summary, detail, where=where, code="unsupported-value")


def _place(file: str, path: Path) -> Position:
    return Position(file, key_path=".".join(map(str, path)) or None)


def _syntax(problem: tomli.TOMLDecodeError, file: str, lines: Sequence[str]) -> Diagnostic:
    where = Position(file, problem.lineno, problem.colno, lines=lines)
    if problem.msg.startswith(("Cannot overwrite", "Cannot declare")):
        key = _key(lines[problem.lineno - 1])
        above = enumerate(lines[: problem.lineno - 1], 1)
        earlier = [number for number, line in above if _key(line) == key]
        if earlier:
            return repeated_key_error(key.strip("[]"), Position(file, earlier[-1]), where)
    return error(f"invalid TOML: {problem.msg}", where=where, code="syntax")


def _key(line: str) -> str:
    """Return the key or header at the start of a line."""
    return line.partition("=")[0].partition("#")[0].strip()
