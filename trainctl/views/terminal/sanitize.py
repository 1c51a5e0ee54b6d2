"""Escape and sanitize untrusted text."""

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
    return escape(_JSON.encode(value))


def escape_character(match: re.Match[str]) -> str:
    r"""Return the escape of a match: ``\n`` or ``\u202e``."""
    character = match[0]
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_SEQUENCE = re.compile(
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
