"""Text that isn't ours, made safe for where it is shown: what it says is shown, what it would do isn't done."""

from __future__ import annotations

import json
import re
from typing import Any

INVISIBLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # controls, with the escapes that move cursors and set titles
    r"\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible, or turning the reading direction
    r"\ud800-\udfff\ufff9-\ufffb"  # halves of characters, annotations
    r"\U000e0000-\U000e007f]"  # tags: invisible text
)
"""A control or invisible character; newline and tab are among them."""

_CI_COMMAND = re.compile(
    r"(?:^|(?<=[\r\n]))(\s*)(:(?=:)|#(?=#teamcity\[))"  # GitHub, at the start of a line; TeamCity
    r"|()(#(?=#(?:\[|vso\[)))",  # GitHub's older form and Azure's, anywhere in it
    re.IGNORECASE,
)

_JSON = json.JSONEncoder(ensure_ascii=False)


def escape(text: str) -> str:
    r"""One line that holds every character visibly: newline, tab and whatever else can't be seen as ``\n``, ``\t``, ``\u202e``."""
    # What Python calls printable has none of these: most text is, and need not be looked through by an expression.
    return text if text.isprintable() else INVISIBLE.sub(escape_character, text)


def escape_lines(text: str) -> list[str]:
    """The lines of a text, each escaped."""
    return [escape(line.removesuffix("\r")) for line in text.split("\n")]


def strip_ci_commands(text: str) -> str:
    r"""The text with no workflow command for the CI system that shows it: its first character is written as ``\u003a``."""
    return _CI_COMMAND.sub(
        lambda order: f"{order[1] or ''}\\u{ord(order[2] or order[4]):04x}", text
    )


def literal(value: Any) -> str:
    """A value as JSON writes it, escaped."""
    return escape(_JSON.encode(value))


def escape_character(found: re.Match[str]) -> str:
    r"""What stands for a character that is not shown: ``\n`` or ``\u202e``."""
    character = found[0]
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_SEQUENCE = re.compile(
    r"\x1b(?:(?P<style>\[[0-9;:]*m)|\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])"
)
_RESET = "\x1b[0m"


def sanitize(text: str, *, color: bool) -> str:
    """The line with its styles (if ``color``), tabs and carriage returns; other sequences are left out, other controls written out.

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
    return INVISIBLE.sub(lambda one: one[0] if one[0] in "\t\r" else escape_character(one), text)
