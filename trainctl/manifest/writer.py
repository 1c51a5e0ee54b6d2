"""Manifests as text with comments: YAML and TOML that ``read`` reads back as the same values."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.manifest.tree import Path, resolve_scalar

Comments = Mapping[Path, str]
"""Text to write above the value at a path."""

_WIDTH = 88
_INLINE = 72
"""Mappings and lists of scalars up to this length are written on one line."""
_PLAIN = compile_lazily(r"(?:[A-Za-z/]|\./)[A-Za-z0-9_./:@+-]*(?<!:)")
_BARE_KEY = compile_lazily(r"[A-Za-z0-9_-]+")


def to_yaml(tree: Mapping[str, Any], comments: Comments) -> str:
    """Return the tree as YAML."""
    return "\n".join(_yaml_mapping(tree, (), comments, "")) + "\n"


def to_toml(tree: Mapping[str, Any], comments: Comments) -> str:
    """Return the tree as TOML."""
    return "\n".join(_toml_table(tree, (), comments)).lstrip("\n") + "\n"


def _comment(path: Path, comments: Comments, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(comments.get(path, ""), _WIDTH - len(indent)):
        yield f"{indent}# {line}"


def _yaml_mapping(
    tree: Mapping[str, Any], path: Path, comments: Comments, indent: str
) -> Iterator[str]:
    for number, (key, value) in enumerate(tree.items()):
        if not path and number:
            yield ""
        yield from _comment((*path, key), comments, indent)
        yield from _yaml_value(
            f"{indent}{_yaml_scalar(key)}:", value, (*path, key), comments, indent
        )


def _yaml_value(
    prefix: str, value: Any, path: Path, comments: Comments, indent: str
) -> Iterator[str]:
    inline = _inline(value, path, comments)
    if inline is not None:
        yield f"{prefix} {inline}"
    elif isinstance(value, Mapping):
        yield prefix
        yield from _yaml_mapping(value, path, comments, f"{indent}  ")
    elif isinstance(value, str):
        yield f"{prefix} |" if value.endswith("\n") else f"{prefix} |-"
        yield from (f"{indent}  {line}" if line else "" for line in value.splitlines())
    else:
        yield prefix
        inner = f"{indent}  "
        for number, item in enumerate(value):
            here = (*path, number)
            yield from _comment(here, comments, inner)
            if isinstance(item, Mapping) and _inline(item, here, comments) is None:
                lines = _yaml_mapping(item, here, comments, f"{inner}  ")
                yield f"{inner}- {next(lines).lstrip()}"
                yield from lines
            else:
                yield from _yaml_value(f"{inner}-", item, here, comments, inner)


def _inline(value: Any, path: Path, comments: Comments) -> str | None:
    """Return a value in one line; None if it is a section, too long, or has comments inside."""
    if isinstance(value, str):
        lines = value.removesuffix("\n").split("\n")
        is_block = (  # of several lines, which a literal block keeps
            "\n" in value
            and not lines[0][:1].isspace()
            and bool(lines[0] and lines[-1])
            and all(line.isprintable() and (not line or line.strip()) for line in lines)
        )
        return None if is_block else _yaml_scalar(value)
    if not isinstance(value, Mapping | list):
        return _yaml_scalar(value)
    items = list(value.values() if isinstance(value, Mapping) else value)
    if isinstance(value, Mapping):
        parts = [f"{_yaml_scalar(key)}: {_yaml_scalar(item)}" for key, item in value.items()]
        text = f"{{{', '.join(parts)}}}"
    else:
        text = f"[{', '.join(map(_yaml_scalar, items))}]"
    is_open = len(path) == 1 or path[-1] in _ALWAYS_OPEN or len(text) > _INLINE
    has_comments = any(here[: len(path)] == path and here != path for here in comments)
    nested = any(isinstance(item, Mapping | list) for item in items)
    return None if items and (is_open or has_comments or nested) else text


_ALWAYS_OPEN = ("environment_variables", "start_commands")


def _yaml_scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _BOOLEANS:
        return value if resolve_scalar(value) == value else _quoted(value)
    return _quoted(value)


_BOOLEANS = frozenset({"y", "n", "yes", "no", "on", "off"})
"""Words that readers of YAML 1.1 take for booleans."""


def _quoted(value: Any) -> str:
    """Return a scalar as JSON, which YAML and TOML read; unprintable characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def _toml_table(tree: Mapping[str, Any], path: Path, comments: Comments) -> Iterator[str]:
    """Yield the values of a table, then its tables."""
    tables = {
        key: value
        for key, value in tree.items()
        if isinstance(value, Mapping) and path[-1:] != ("environment_variables",)
    }
    values = {key: value for key, value in tree.items() if key not in tables}
    if path and (values or not tables):
        yield from ("", *_comment(path, comments, ""))
        yield f"[{'.'.join(_toml_key(str(step)) for step in path)}]"
    for key, value in values.items():
        yield from _comment((*path, key), comments, "")
        yield f"{_toml_key(key)} = {_toml_value(value, (*path, key), comments)}"
    for key, value in tables.items():
        yield from _toml_table(value, (*path, key), comments)


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _toml_value(value: Any, path: Path, comments: Comments) -> str:
    if isinstance(value, Mapping):
        parts = (f"{_toml_key(key)} = {_toml_value(item, (), {})}" for key, item in value.items())
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, list | tuple):
        items = [_toml_value(item, (*path, n), comments) for n, item in enumerate(value)]
        text = f"[{', '.join(items)}]"
        if len(text) <= _INLINE:
            return text
        lines = [
            line
            for n, item in enumerate(items)
            for line in (*_comment((*path, n), comments, "    "), f"    {item},")
        ]
        return "\n".join(["[", *lines, "]"])
    return _quoted(value)
