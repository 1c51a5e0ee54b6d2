"""Formatting manifests: indentation, blank lines and line ends. Comments, quotes and values stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trainctl.errors import ManifestError, TrainctlError
from trainctl.manifest.files import UnreadableManifest, file_bytes, manifest_files
from trainctl.manifest.read import parse_mapping
from trainctl.manifest.tree import to_plain

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOML_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[][{}\n]',
    re.DOTALL,
)
_TOML_INDENT = 4


class FormattedFile(NamedTuple):
    """A manifest file as it is and formatted."""

    name: str
    before: str
    after: str


class _Line(NamedTuple):
    text: str
    is_verbatim: bool = False
    """Whether it begins inside a text of several lines."""


class _Level(NamedTuple):
    """A block of YAML: its column before and after, and whether it is a list."""

    old: int
    new: int
    is_list: bool


def format_files(directory: Path) -> list[FormattedFile]:
    """Format all manifest files of a directory; ManifestError if one is invalid. Writes nothing."""
    formatted = []
    for name in manifest_files(directory):
        try:
            data = file_bytes(directory / name, name)
            values = to_plain(parse_mapping(data, name, []))
            before = data.decode()
            after = format_text(before, name)
            same = repr(to_plain(parse_mapping(after.encode(), name, []))) == repr(values)
        except UnreadableManifest as stop:
            raise ManifestError((stop.diagnostic,)) from None
        if not same or before.split() != after.split():
            raise TrainctlError(
                f"cannot format {name} without changing its values",
                "Write texts that keep blank lines at their end (|+) in quotes.",
                code="not-formatted",
            )
        formatted.append(FormattedFile(name, before, after))
    return formatted


def format_text(text: str, name: str) -> str:
    """Format a valid manifest, TOML by its name or YAML."""
    text = text.replace("\r\n", "\n")
    kept: list[str] = []
    for line, is_verbatim in (_toml_lines if name.endswith(".toml") else _yaml_lines)(text):
        if line or is_verbatim or (kept and kept[-1]):  # at most one blank line
            kept.append(line)
    return "\n".join(kept).rstrip("\n") + "\n"


def _toml_lines(text: str) -> Iterator[_Line]:
    """Indent the lines of lists by the brackets that are open."""
    depth = 0
    depths, inside = [0], [False]
    for token in _TOML_TOKEN.finditer(text):
        word = token[0]
        depth += (word in ("[", "{")) - (word in ("]", "}"))
        count = 1 if word == "\n" else 0 if word.startswith("#") else word.count("\n")
        depths += [depth] * count
        inside += [word != "\n"] * count
    for number, line in enumerate(text.split("\n")):
        line = line if _opens(inside, number) else line.rstrip()
        words = line.lstrip()
        level = depths[number] - words.startswith(("]", "}"))
        yield (
            _Line(line, True)
            if inside[number]
            else _Line(words and " " * (_TOML_INDENT * level) + words)
        )


def _opens(inside: list[bool], number: int) -> bool:
    """Whether a text of several lines continues after the line."""
    return number + 1 < len(inside) and inside[number + 1]


def _yaml_lines(text: str) -> Iterator[_Line]:
    """Indent blocks by two, lists inside of their key; what continues a line moves with it."""
    lines = text.split("\n")
    inside, flows = _continued_lines(text, len(lines))
    levels: list[_Level] = []
    shift = 0
    for number, line in enumerate(lines):
        line = line if inside[number] or _opens(inside, number) else line.rstrip()
        words = line.lstrip(" ")
        column = len(line) - len(words)
        if inside[number] or flows[number]:
            yield _Line(_shifted(line, shift), inside[number])
        elif words.startswith("#"):
            after = (n for n in range(number + 1, len(lines)) if not (inside[n] or flows[n]))
            content = (lines[n] for n in after if lines[n].strip())
            following = next((text for text in content if text.lstrip()[0] != "#"), "")
            if len(following) - len(following.lstrip()) == column and following:
                _enter(levels, column, _is_item(following.strip()))
            outer = next((level for level in reversed(levels) if level.old <= column), None)
            yield _Line(" " * (outer.new + column - outer.old if outer else 0) + words)
        elif not words or line.startswith(("---", "...", "%")):
            yield _Line(words)
        else:
            indented = _indented(levels, words, column)
            shift = levels[-1].new - levels[-1].old
            yield _Line(indented)


def _continued_lines(text: str, count: int) -> tuple[list[bool], list[bool]]:
    """Return for each line whether it begins inside a scalar, and inside brackets."""
    inside, flows = [False] * count, [False] * count
    begins: list[int] = []
    for token in yaml.scan(text, Loader=_LOADER):
        first, last = token.start_mark.line, token.end_mark.line
        if isinstance(token, yaml.ScalarToken):
            for number in range(first + 1, last + (token.end_mark.column > 0)):
                inside[number] = True
        elif isinstance(token, yaml.FlowMappingStartToken | yaml.FlowSequenceStartToken):
            begins.append(first)
        elif isinstance(token, yaml.FlowMappingEndToken | yaml.FlowSequenceEndToken):
            for number in range(begins.pop() + 1, last + 1):
                flows[number] = True
    return inside, flows


def _indented(levels: list[_Level], words: str, column: int) -> str:
    """Enter the blocks that begin on a line; return it with its new indentation."""
    _enter(levels, column, _is_item(words))
    text = " " * levels[-1].new
    while _is_item(words):
        item = words[1:].lstrip(" ")
        if not item or item.startswith("#"):
            break
        column += len(words) - len(item)
        words, text = item, f"{text}- "
        _enter(levels, column, _is_item(words))
    return text + words


def _is_item(words: str) -> bool:
    return words == "-" or words.startswith("- ")


def _enter(levels: list[_Level], column: int, is_list: bool) -> None:
    """Leave the blocks that end before a line, and enter its own; a list may begin at its key's column."""
    while levels and (
        levels[-1].old > column or (levels[-1].old == column and levels[-1].is_list and not is_list)
    ):
        levels.pop()
    if not levels or levels[-1].old < column or levels[-1].is_list != is_list:
        levels.append(_Level(column, levels[-1].new + 2 if levels else 0, is_list))


def _shifted(line: str, count: int) -> str:
    if count >= 0:
        return " " * count + line if line else line
    return line[min(-count, len(line) - len(line.lstrip(" "))) :]
