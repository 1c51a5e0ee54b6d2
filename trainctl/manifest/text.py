"""YAML and TOML text to a tree with positions, within limits on size and depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from typing import Any

import tomli
import yaml

from trainctl.manifest.files import FileLines, UnreadableManifest, unreadable
from trainctl.manifest.tree import (
    MAX_DEPTH,
    MAX_NODES,
    ManifestNode,
    Path,
    Scalar,
    SourceFloat,
    list_node,
    mapping_node,
    parse_finite,
    require_encodable,
    resolve_scalar,
    scalar_node,
)
from trainctl.model.diagnostics import Diagnostic, Position, error

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_MERGE = "<<"


def parse_yaml(text: str, file: str, problems: list[Diagnostic]) -> ManifestNode | None:
    """Parse a document, None if empty; raise UnreadableManifest if invalid.

    Repeated keys are added to ``problems``.
    """
    lines = FileLines(text, file)
    builder = _YamlTreeBuilder(file, lines, problems)
    loader = _LOADER(text)
    try:
        return builder.document(iter(loader.get_event, None))
    except yaml.YAMLError as problem:
        raise UnreadableManifest(_yaml_problem(problem, lines, file)) from None
    finally:
        loader.dispose()


class _YamlTreeBuilder:
    def __init__(self, file: str, lines: Sequence[str], problems: list[Diagnostic]) -> None:
        self._file = file
        self._lines = lines
        self._problems = problems
        self._anchors: dict[str, ManifestNode] = {}
        self._nodes = 0

    def document(self, events: Iterator[Any]) -> ManifestNode | None:
        """Return the root of the only document, None if empty."""
        root = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._stop(
                        "more than one YAML document in a file",
                        "Move the part after '---' to a separate file, such as more.trainctl.yaml.",
                        event,
                        code="unsupported-yaml",
                    )
                root = self._node(next(events), events, 1)
        if root is None or (root.value is None and root.where.line is None):
            return None
        return root

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> ManifestNode:
        if depth > MAX_DEPTH:
            raise UnreadableManifest(too_deep_error(self._at(event)))
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            known = self._anchors.get(event.anchor or "")
            if known is None:
                raise self._stop(
                    "undefined alias",
                    f"Add the anchor &{event.anchor} before it.",
                    event,
                    code="unsupported-yaml",
                )
            if depth + known.height - 1 > MAX_DEPTH:
                raise UnreadableManifest(too_deep_error(self._at(event)))
            self._count(known.size, event)
            return known
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, "seq")
            items = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(self._node(item, events, depth + 1))
            node = list_node(items, self._at(event))
        else:
            node = self._mapping(event, events, depth)
        self._count(1 if node.height > 1 else node.size, event)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _scalar(self, event: Any) -> ManifestNode:
        where = self._at(event)
        try:
            return scalar_node(self._value(event), where)
        except ValueError as why:
            advice = "Remove the tag." if event.style else "If you mean text, put it in quotes."
            problem = error(str(why), advice, where=where, code="unsupported-value")
            self._problems.append(problem)
            return scalar_node("", where)

    def _mapping(self, event: Any, events: Iterator[Any], depth: int) -> ManifestNode:
        self._check_tag(event, "map")
        entries: dict[str, ManifestNode] = {}
        keys: dict[str, Position] = {}
        merged: list[ManifestNode] = []
        for key_event in events:
            if isinstance(key_event, yaml.MappingEndEvent):
                break
            key = self._key(key_event)
            where = self._at(key_event)
            node = self._node(next(events), events, depth + 1)
            if key == _MERGE and key_event.implicit[0]:
                merged += self._merged(node, key_event)
            elif key in entries:
                self._problems.append(repeated_key_error(key, keys[key], where))
            else:
                entries[key], keys[key] = node, where
        for base in merged:
            for key, node in base.entries.items():
                if key not in entries:
                    entries[key], keys[key] = node, base.key_position(key)
        return mapping_node(entries, keys, self._at(event))

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise self._stop(
                "a key must be text",
                "Use a single word, or put the key in quotes.",
                event,
                code="unsupported-yaml",
            )
        key: str = event.value
        self._count(1 + len(key) // 100, event)
        try:
            return require_encodable(key)
        except ValueError as why:
            raise self._stop(str(why), "", event, code="unsupported-value") from None

    def _merged(self, node: ManifestNode, event: Any) -> list[ManifestNode]:
        bases = node.items or [node]
        if not all(isinstance(base.value, dict) for base in bases):
            raise self._stop(
                "'<<' can only merge mappings",
                "Use *NAME of a mapping.",
                event,
                code="unsupported-yaml",
            )
        self._count(sum(base.size for base in bases), event)
        return bases

    def _value(self, event: Any) -> Scalar:
        if event.implicit[0] and not event.tag:
            return resolve_scalar(event.value)
        tag = (event.tag or "").removeprefix(_CORE)
        if tag in ("", "!", "str"):
            return require_encodable(event.value)
        value = resolve_scalar(event.value) if tag in ("int", "float", "bool", "null") else ""
        kind = {bool: "bool", int: "int", type(None): "null", str: "str"}.get(type(value), "float")
        if kind == tag:
            return value
        if tag == "float" and kind == "int":
            return parse_finite(event.value)
        raise ValueError(f"the tag {event.tag.replace(_CORE, '!!')} doesn't match the value")

    def _check_tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", _CORE + expected):
            raise self._stop(
                "only the core tags of YAML are supported",
                "Remove the tag.",
                event,
                code="unsupported-yaml",
            )

    def _count(self, nodes: int, event: Any) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise self._stop(
                "the file is too large after expanding aliases",
                f"A file can have at most {MAX_NODES} values; split it, or use fewer aliases.",
                event,
                code="file-too-large",
            )

    def _at(self, event: Any) -> Position:
        mark = event.start_mark
        return Position(self._file, mark.line + 1, mark.column + 1, lines=self._lines)

    def _stop(self, summary: str, detail: str, event: Any, *, code: str) -> UnreadableManifest:
        return unreadable(summary, detail, where=self._at(event), code=code)


def repeated_key_error(key: str, first: Position, second: Position) -> Diagnostic:
    """Create the problem of a repeated key."""
    return error(
        f"duplicate key {key!r}",
        f"It is already set at {first}. Remove one of them.",
        where=second,
        code="duplicate-key",
    )


def too_deep_error(where: Position) -> Diagnostic:
    """Create the problem of a value that is nested too deeply."""
    return error(
        "too many levels of nesting",
        f"A manifest can have at most {MAX_DEPTH} levels.",
        where=where,
        code="nested-too-deep",
    )


def _yaml_problem(problem: yaml.YAMLError, lines: Sequence[str], file: str) -> Diagnostic:
    context = getattr(problem, "context_mark", None)
    mark = getattr(problem, "problem_mark", None) or context
    if mark is None:
        return error(
            f"invalid YAML: {str(problem).splitlines()[0]}",
            where=Position(file, 1, 1),
            code="syntax",
        )
    where = Position(file, mark.line + 1, mark.column + 1, lines=lines)
    if "maximum nesting" in str(problem):  # the limit of libyaml may be lower
        return too_deep_error(where)
    line = next(iter(lines[mark.line : mark.line + 1]), "")
    above = next((text for text in reversed(lines[: mark.line]) if text.strip()), "")
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return error("indentation with a tab", "Use spaces.", where=where, code="syntax")
    parts = (getattr(problem, "context", None), getattr(problem, "problem", None))
    summary = f"invalid YAML: {', '.join(part for part in parts if part)}"
    advice = _advice(parts, line, above, mark, context)
    return error(summary, advice, where=where, code="syntax")


def _advice(parts: Sequence[str | None], line: str, above: str, mark: Any, context: Any) -> str:
    """Return advice for a syntax error at ``mark``, in an element that starts at ``context``."""
    column, before = len(line) - len(line.lstrip()), line[: mark.column]
    if "mapping values are not allowed" in str(parts[1]):
        if ": " in before:
            return "If ': ' is part of the value, put the value in quotes."
        if column <= len(above) - len(above.lstrip()):
            return "The line above has no ': ' after its key."
        return "This line is indented below a complete value. Start it in the column of that value's key."
    if context is None or context.line == mark.line:
        return ""
    if "simple key" in str(parts[0]):
        return f"Line {context.line + 1} has no ': ' after its key."
    if "block" in str(parts[0]) and before.strip() == "" and line[column:].startswith("- "):
        return "Start all items of a list in the same column."
    if "block" not in str(parts[0]) or before.strip() or column == context.column:
        return f"The enclosing element starts at line {context.line + 1}."
    return f"This line starts in column {column + 1}, the section of line {context.line + 1} in column {context.column + 1}. Indent its keys alike."


def parse_toml(text: str, file: str, problems: list[Diagnostic]) -> ManifestNode | None:
    """Parse a text, None if empty; raise UnreadableManifest if invalid."""
    try:
        document = tomli.loads(text, parse_float=_toml_number)
    except RecursionError:
        raise UnreadableManifest(too_deep_error(Position(file))) from None
    except tomli.TOMLDecodeError as problem:
        where = Position(file, problem.lineno, problem.colno, lines=FileLines(text, file))
        raise unreadable(f"invalid TOML: {problem.msg}", where=where, code="syntax") from None
    except ValueError as problem:
        raise unreadable(f"invalid TOML: {problem}", where=Position(file), code="syntax") from None
    if not document:
        return None
    root = _toml_node(document, (), file)
    if root.size > MAX_NODES:
        raise unreadable(
            "the file is too large",
            f"A file can have at most {MAX_NODES} values; split it.",
            where=root.where,
            code="file-too-large",
        )
    return root


def _toml_number(text: str) -> float:
    """Parse a float; ``_toml_node``, which knows positions, rejects non-finite numbers."""
    try:
        return parse_finite(text.replace("_", ""))
    except ValueError:
        return float(text)


def _toml_node(value: Any, path: Path, file: str) -> ManifestNode:
    """Convert the value at a path; raise UnreadableManifest if too deep or not JSON."""
    where = _place(file, path)
    if len(path) >= MAX_DEPTH:
        raise UnreadableManifest(too_deep_error(where))
    if isinstance(value, dict):
        entries = {
            _toml_text(key, where): _toml_node(entry, (*path, key), file)
            for key, entry in value.items()
        }
        return mapping_node(entries, {key: _place(file, (*path, key)) for key in value}, where)
    if isinstance(value, list):
        items = [_toml_node(item, (*path, index), file) for index, item in enumerate(value)]
        return list_node(items, where)
    if isinstance(value, datetime | date | time):
        raise _unsupported(
            "dates are not supported in a manifest", where, f'Put it in quotes: "{value}".'
        )
    if isinstance(value, float) and not isinstance(value, SourceFloat):
        raise _unsupported("infinity and NaN are not allowed in a manifest", where)
    return scalar_node(_toml_text(value, where) if isinstance(value, str) else value, where)


def _toml_text(value: str, where: Position) -> str:
    try:
        return require_encodable(value)
    except ValueError as why:
        raise _unsupported(str(why), where) from None


def _unsupported(summary: str, where: Position, detail: str = "") -> UnreadableManifest:
    return unreadable(summary, detail, where=where, code="unsupported-value")


def _place(file: str, path: Path) -> Position:
    return Position(file, key_path=".".join(map(str, path)) or None)
