"""TOML to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

import tomli

from trainctl.manifest import scalars
from trainctl.manifest.files import Unreadable, lines_of
from trainctl.manifest.toml_places import Place, Places, TooDeep, places_of
from trainctl.manifest.tree import (
    MAX_DEPTH,
    MAX_NODES,
    Node,
    Path,
    SourceFloat,
    list_node,
    mapping_node,
    scalar_node,
)
from trainctl.manifest.yaml_text import repeated
from trainctl.model.diagnostics import Diagnostic, Position, error


def parse_toml(text: str, file: str, problems: list[Diagnostic]) -> Node | None:
    """The mapping of a text, None if it is empty. Unreadable stops."""
    too_deep = error(
        "nested too deep",
        f"A manifest has at most {MAX_DEPTH} levels.",
        where=Position(file),
        code="nested-too-deep",
    )
    lines = lines_of(text, file)
    try:
        places = places_of(text)
        document = tomli.loads(text, parse_float=_number)
    except (TooDeep, RecursionError):
        raise Unreadable(too_deep) from None
    except tomli.TOMLDecodeError as problem:
        raise Unreadable(_syntax(problem, file, lines, places)) from None
    except ValueError as problem:
        raise Unreadable(
            error(f"not TOML: {problem}", where=Position(file), code="syntax")
        ) from None
    if not document:
        return None
    root = _Builder(file, lines, places).node(document, ())
    if root.size > MAX_NODES:
        raise Unreadable(
            error(
                "the file is too large",
                f"A file has at most {MAX_NODES} values; split it.",
                where=root.where,
                code="file-too-large",
            )
        )
    return root


def _number(text: str) -> float:
    """Infinities pass, to be refused where their place is known."""
    try:
        return scalars.finite(text.replace("_", ""))
    except ValueError:
        return float(text)


class _Builder:
    def __init__(self, file: str, lines: Sequence[str], places: Places) -> None:
        self._file = file
        self._lines = lines
        self._places = places

    def node(self, value: Any, path: Path) -> Node:
        """The value at a path as a node; Unreadable where it is nested too deep or has no place in JSON."""
        where = self._where(self._places.values.get(path), path)
        if len(path) >= MAX_DEPTH:
            raise Unreadable(
                error(
                    "nested too deep",
                    f"A manifest has at most {MAX_DEPTH} levels.",
                    where=where,
                    code="nested-too-deep",
                )
            )
        if isinstance(value, dict):
            keys = {
                key: self._where(self._places.keys.get((*path, key)), (*path, key)) for key in value
            }
            entries = {
                self._text(key, where): self.node(entry, (*path, key))
                for key, entry in value.items()
            }
            return mapping_node(entries, keys, where)
        if isinstance(value, list):
            return list_node([self.node(item, (*path, i)) for i, item in enumerate(value)], where)
        if isinstance(value, datetime | date | time):
            raise Unreadable(
                error(
                    "a manifest has no dates",
                    f'Write it in quotes: "{value}".',
                    where=where,
                    code="unsupported-value",
                )
            )
        return scalar_node(self._scalar(value, where), where)

    def _scalar(self, value: Any, where: Position) -> Any:
        if isinstance(value, str):
            return self._text(value, where)
        if isinstance(value, float) and not isinstance(value, SourceFloat):
            raise Unreadable(
                error(
                    "infinity and NaN have no place in a manifest",
                    where=where,
                    code="unsupported-value",
                )
            )
        return value

    def _text(self, value: str, where: Position) -> str:
        try:
            return scalars.tellable(value)
        except ValueError as why:
            raise Unreadable(error(str(why), where=where, code="unsupported-value")) from None

    def _where(self, place: Place | None, path: Path) -> Position:
        line, column = place or (None, None)
        return Position(self._file, line, column, ".".join(map(str, path)) or None, self._lines)


def _syntax(
    problem: tomli.TOMLDecodeError, file: str, lines: Sequence[str], places: Places
) -> Diagnostic:
    for path, first, second in places.repeats:
        if second[0] == problem.lineno:
            return repeated(
                str(path[-1]), Position(file, *first), Position(file, *second, lines=lines)
            )
    where = Position(file, problem.lineno, problem.colno, lines=lines)
    return error(f"not TOML: {problem.msg}", where=where, code="syntax")
