"""Formatting YAML manifests: indentation, blank lines and line ends. Comments, quotes and values stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.errors import ManifestError, TrainctlError
from trainctl.manifest.files import UnreadableManifest, file_bytes, manifest_files
from trainctl.manifest.read import parse_mapping
from trainctl.manifest.tree import to_plain

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class FormattedFile(NamedTuple):
    """A manifest file as it is and formatted."""

    name: str
    before: str
    after: str


class _Level(NamedTuple):
    """A block of YAML: its column before and after, and whether it is a list."""

    old: int
    new: int
    is_list: bool


def format_files(directory: Path) -> Iterator[FormattedFile]:
    """Format all YAML files of a directory; ManifestError if one is invalid. Writes nothing."""
    for name in manifest_files(directory):
        if name.endswith(".toml"):
            continue
        try:
            data = file_bytes(directory / name, name)
            values = to_plain(parse_mapping(data, name, []))
            before = data.decode()
            after = format_text(before)
            same = repr(to_plain(parse_mapping(after.encode(), name, []))) == repr(values)
        except UnreadableManifest as stop:
            raise ManifestError((stop.diagnostic,)) from None
        if not same or before.split() != after.split():
            raise TrainctlError(
                f"cannot format {name} without changing its values",
                "Write texts that keep blank lines at their end (|+) in quotes.",
                code="not-formatted",
            )
        yield FormattedFile(name, before, after)


def format_text(text: str) -> str:
    """Format a valid manifest."""
    lines = text.replace("\r\n", "\n").split("\n")
    inside, depths = _scan("\n".join(lines), len(lines))
    for number, line in enumerate(lines):
        if not (inside[number] or inside[number + 1]):
            lines[number] = line.rstrip()
    kept: list[str] = []
    for number, line in enumerate(_indent(lines, inside, depths)):
        if line or inside[number] or (kept and kept[-1]):  # at most one blank line
            kept.append(line)
    return "\n".join(kept).rstrip("\n") + "\n"


def _scan(text: str, count: int) -> tuple[list[bool], list[int]]:
    """Return for each line whether it begins inside a scalar, and inside how many brackets."""
    inside, depths = [False] * (count + 1), [0] * count
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
                depths[number] += 1
    return inside, depths


def _indent(lines: list[str], inside: list[bool], depths: list[int]) -> Iterator[str]:
    """Indent blocks by two, lists inside of their key; what continues a line moves with it."""
    levels: list[_Level] = []
    shift = 0
    for number, line in enumerate(lines):
        words = line.lstrip(" ")
        column = len(line) - len(words)
        if inside[number] or depths[number]:
            moved = " " * shift + line if line else line
            yield moved if shift >= 0 else line[min(-shift, column) :]
        elif words.startswith("#"):
            content = (text for text in lines[number:] if text.strip() and text.lstrip()[0] != "#")
            following = next(content, "")
            if following and len(following) - len(following.lstrip()) == column:
                _enter(levels, column, _is_item(following.strip()))
            outer = next((level for level in reversed(levels) if level.old <= column), None)
            yield " " * (outer.new + column - outer.old if outer else 0) + words
        elif not words or line.startswith(("---", "...", "%")):
            yield words
        else:
            yield _indented(levels, words, column)
            shift = levels[-1].new - levels[-1].old


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
    while levels and (levels[-1].old, levels[-1].is_list) > (column, is_list):
        levels.pop()
    if not levels or (levels[-1].old, levels[-1].is_list) != (column, is_list):
        levels.append(_Level(column, levels[-1].new + 2 if levels else 0, is_list))
