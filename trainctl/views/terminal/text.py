"""Text for a terminal: escape, measure, wrap, and lay out in tables."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_pattern import compile_lazily

if TYPE_CHECKING:
    from trainctl.model.reports import UnreachableNode

Style = Callable[[str, str], str]
"""Style a text: ``bold``, ``dim``, ``red``, ``green``, ``yellow`` or ``cyan``."""

_PAINT = compile_lazily(r"\x1b\[\d{1,2}m")


def plain(text: str, style: str) -> str:
    """Return the text without style."""
    del style
    return text


def display_width(text: str) -> int:
    """Return the terminal columns of a line."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(character) for character in text)


def shorten(text: str, most: int) -> str:
    """Shorten a text to ``most`` columns, with an ellipsis in the middle."""
    if display_width(text) <= most:
        return text
    head = text
    while display_width(head) > (most - 1 + 1) // 2:
        head = head[:-1]
    tail = text[len(head) :]
    while tail and display_width(tail) > most - 1 - display_width(head):
        tail = tail[1:]
    return f"{head}…{tail}"


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Pad a text with spaces to a width."""
    space = " " * max(width - display_width(text), 0)
    return space + text if right else text + space


def wrap(line: str, width: int) -> list[str]:
    """Wrap a line between words; longer words are not broken.

    Continuation lines have the indentation of the text; 2 more for headings and lines with a sign.
    """
    unpainted = _PAINT.sub("", line)
    if display_width(unpainted) <= width:
        return [line]
    text = unpainted.lstrip(" ")
    indent = " " * (len(unpainted) - len(text))
    hanging = indent if indent and text[0].isalnum() else indent + "  "
    first, *words = line.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if display_width(_PAINT.sub("", longer)) <= width:
            lines[-1] = longer
        else:
            lines.append(hanging + word)
    return lines


def _columns_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def warning_text(text: str, *, code: str) -> str:
    """Format a warning with its code."""
    return f"Warning: {text} [{code}]"


def pluralize(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count: ``1 file``, ``2 files``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def format_timestamp(seconds: float | None) -> str | None:
    """Format a time as RFC 3339 in UTC; None if out of range."""
    if seconds is None:
        return None
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_minute(seconds: float | None) -> str:
    """Format a UTC time: ``2026-01-31 12:00``; '' for None."""
    return (format_timestamp(seconds) or "")[:16].replace("T", " ")


def second(seconds: float | None) -> str:
    """Format a UTC time to the second; '' for None."""
    return (format_timestamp(seconds) or "")[:19].replace("T", " ")


def unreachable_json(nodes: Iterable[UnreachableNode]) -> list[dict[str, Any]]:
    """Return the ``unreachable`` list of JSON output."""
    return [{"node": node.node, "ranks": list(node.ranks), "reason": node.why} for node in nodes]


def unreachable_text(node: UnreachableNode, missing: str) -> str:
    """Format ``lab/gpu-1 is unreachable; not shown: the log of rank 1``; ``missing``: ``the log``."""
    word = "rank" if len(node.ranks) == 1 else "ranks"
    return f"{escape(node.why)}; not shown: {missing} of {word} {', '.join(map(str, node.ranks))}"


INVISIBLE = compile_lazily(
    r"[\x00-\x1f\x7f-\x9f"  # controls, with the escapes that move cursors and set titles
    r"\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible, or turning the reading direction
    r"\ud800-\udfff\ufff9-\ufffb"  # halves of characters, annotations
    r"\U000e0000-\U000e007f]"  # tags: invisible text
)
"""A control or invisible character; newline and tab are among them."""

_CI_COMMAND = compile_lazily(
    r"(?:^|(?<=[\r\n]))(\s*)(:(?=:)|#(?=#teamcity\[))"  # GitHub, at the start of a line; TeamCity
    r"|()(#(?=#(?:\[|vso\[)))",  # GitHub's older form and Azure's, anywhere in it
    re.IGNORECASE,
)

_JSON = json.JSONEncoder(ensure_ascii=False)
_quote = json.encoder.encode_basestring


def escape(text: str) -> str:
    r"""Escape invisible characters: newline as ``\n``, others as ``\u202e``."""
    # Fast path: printable text has no invisible characters.
    return text if text.isprintable() else INVISIBLE.sub(escape_character, text)


def escape_lines(text: str) -> list[str]:
    """Return the lines of a text, escaped."""
    return [escape(line.removesuffix("\r")) for line in text.split("\n")]


def strip_ci_commands(text: str) -> str:
    r"""Escape CI workflow commands: their first character as ``\u003a``."""
    return _CI_COMMAND.sub(
        lambda match: f"{match[1] or ''}\\u{ord(match[2] or match[4]):04x}", text
    )


def literal(value: Any) -> str:
    """Format a value as JSON, escaped."""
    return escape(_quote(value) if isinstance(value, str) else _JSON.encode(value))


def escape_character(match: re.Match[str]) -> str:
    r"""Return the escape of a match: ``\n`` or ``\u202e``."""
    character = match[0]
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_SEQUENCE = compile_lazily(
    r"\x1b(?:(?P<style>\[[0-9;:]*m)|\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])"
)
_RESET = "\x1b[0m"


def sanitize(text: str, *, color: bool) -> str:
    """Keep styles (if ``color``), tabs and carriage returns; escape others.

    A style ends with the line.
    """
    shown, at, styled = "", 0, False
    for sequence in _SEQUENCE.finditer(text):
        shown += _escape_controls(text[at : sequence.start()])
        at = sequence.end()
        if color and sequence["style"] is not None:
            shown += sequence[0]
            styled = True
    return shown + _escape_controls(text[at:]) + (_RESET if styled else "")


def _escape_controls(text: str) -> str:
    return INVISIBLE.sub(
        lambda match: match[0] if match[0] in "\t\r" else escape_character(match), text
    )


_NARROWEST = 10
_FORMULA = compile_lazily(r"[=+@]|-(?![-rwxsStT]{9}$)")
"""Text that a spreadsheet would compute; permissions are not."""


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Container[str] = (),
    width: int | None = None,
    shrinks: Container[str] | None = None,
    narrowest: Mapping[str, int] | None = None,
    drops: Sequence[str] = (),
    style: Style = plain,
    indent: str = "",
    paint: Callable[[int, str, str], str] | None = None,
) -> list[str]:
    """Return an aligned table with dim headers, without empty columns.

    ``right`` columns are right-aligned. To fit ``width``, the columns ``shrinks`` (None: those of ``narrowest``, if
    given, else all) are shortened to at least ``narrowest``, then ``drops`` are dropped in order; if that is not
    enough, nothing is shortened or dropped. ``paint(row, header, text)`` styles a cell.
    """
    columns = [i for i in range(len(headers)) if not rows or any(row[i] for row in rows)]
    lines = [[escape(line[i]) for i in columns] for line in (headers, *rows)]
    widths = _widths(lines)
    if width is not None:
        shrinks = narrowest if shrinks is None else shrinks
        lines, widths = _fit(lines, drops, shrinks, narrowest or {}, width - len(indent))
    headers = lines[0]

    def shown(number: int, cell: str, size: int, header: str) -> str:
        text = shorten(cell, size)
        padded = pad(text, size, right=header in right)
        if paint is None or number == 0 or not text:
            return padded
        return padded.replace(text, paint(number - 1, header, text), 1)

    texts = []
    for number, line in enumerate(lines):
        cells = zip(line, widths, headers, strict=True)
        texts.append(indent + "  ".join(shown(number, *cell) for cell in cells).rstrip())
    return [style(texts[0], "dim"), *texts[1:]]


def _fit(
    lines: list[list[str]],
    drops: Sequence[str],
    shrinks: Container[str] | None,
    narrowest: Mapping[str, int],
    available: int,
) -> tuple[list[list[str]], list[int]]:
    """Drop columns until the rest fits, and reduce the largest widths; neither if impossible."""
    remaining = lines
    for header in (*(drop for drop in drops if drop in lines[0]), None):
        widths = _widths(remaining)
        least = [
            min(size, narrowest.get(name, _NARROWEST))
            if shrinks is None or name in shrinks
            else size
            for size, name in zip(widths, remaining[0], strict=True)
        ]
        gaps = 2 * (len(widths) - 1)
        if sum(least) + gaps <= available:
            while sum(widths) + gaps > available:
                may = [i for i, size in enumerate(widths) if size > least[i]]
                widths[max(may, key=widths.__getitem__)] -= 1
            return remaining, widths
        if header is not None:
            index = remaining[0].index(header)
            remaining = [[*line[:index], *line[index + 1 :]] for line in remaining]
    return lines, _widths(lines)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(display_width, cells)) for cells in zip(*lines, strict=True)]


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Format rows as CSV; lists are joined by ``;``, formulas are quoted."""

    def cell(value: Any) -> Any:
        if isinstance(value, list | tuple):
            value = ";".join(map(str, value))
        if isinstance(value, str) and _FORMULA.match(value):
            return f"'{value}"
        return "" if value is None else value

    import csv

    stream = io.StringIO()
    writer = csv.writer(stream)  # quotes both characters of its line ends
    writer.writerow(columns)
    writer.writerows([cell(row.get(column)) for column in columns] for row in rows)
    return stream.getvalue().replace("\r\n", "\n")
