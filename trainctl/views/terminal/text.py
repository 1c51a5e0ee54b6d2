"""What all text views share: styles, widths, times, warnings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from trainctl.model.reports import UnreachableNode
from trainctl.views.terminal.sanitize import escape

Style = Callable[[str, str], str]
"""Paints a text in a style: ``bold``, ``dim``, ``red``, ``green``, ``yellow``, ``cyan``. ``Output.style`` is one."""

_PAINT = re.compile(r"\x1b\[\d{1,2}m")


def plain(text: str, style: str) -> str:
    """No style: for pipes, files and --no-color."""
    del style
    return text


def display_width(text: str) -> int:
    """How many terminal columns a line takes."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(character) for character in text)


def shorten(text: str, most: int) -> str:
    """The text in at most so many columns, with an ellipsis where its middle was."""
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
    """The text filled with spaces to a width; ``right`` puts it at the right end."""
    space = " " * max(width - display_width(text), 0)
    return space + text if right else text + space


def wrap(line: str, width: int) -> list[str]:
    """The line in lines of so many columns, broken between words; a word that is longer stays whole.

    Sentences go on where they began. What begins at the margin or with a sign, as headings and rows do, goes on further in.
    """
    unpainted = _PAINT.sub("", line)
    if display_width(unpainted) <= width:
        return [line]
    text = unpainted.lstrip(" ")
    begins = " " * (len(unpainted) - len(text))
    goes_on = begins if begins and text[0].isalnum() else begins + "  "
    first, *words = line.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if display_width(_PAINT.sub("", longer)) <= width:
            lines[-1] = longer
        else:
            lines.append(goes_on + word)
    return lines


def _columns_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def warning_text(text: str, *, code: str) -> str:
    """A warning that stands beside an answer."""
    return f"Warning: {text} [{code}]"


def pluralize(count: int, noun: str, plural: str | None = None) -> str:
    """``1 file``, ``2 files``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def format_timestamp(seconds: float | None) -> str | None:
    """A time as RFC 3339 in UTC; None for one that no calendar has, which a wrong clock may have given a file."""
    if seconds is None:
        return None
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_minute(seconds: float | None) -> str:
    """A time in tables, in UTC: ``2026-01-31 12:00``; empty where there is none."""
    return (format_timestamp(seconds) or "")[:16].replace("T", " ")


def second(seconds: float | None) -> str:
    """The same to the second."""
    return (format_timestamp(seconds) or "")[:19].replace("T", " ")


def unreachable_json(found: Iterable[UnreachableNode]) -> list[dict[str, Any]]:
    """The list that the JSON forms of partial answers have as ``unreachable``."""
    return [{"node": one.node, "ranks": list(one.ranks), "reason": one.why} for one in found]


def unreachable_lines(found: Iterable[UnreachableNode], what: str) -> list[str]:
    """A warning for each: ``what`` is missing, such as ``the log``."""
    return [warning_text(unreachable_text(one, what), code="node-unreachable") for one in found]


def unreachable_text(one: UnreachableNode, what: str) -> str:
    """``lab/gpu-1 doesn't answer: without the log of rank 1``."""
    return f"{escape(one.why)}; not shown: {what} of {_ranks(one.ranks)}"


def _ranks(ranks: Sequence[int]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks))}"
