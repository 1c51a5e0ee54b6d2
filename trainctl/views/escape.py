"""Text that isn't ours, made safe for a terminal: what it says is shown, what it would do isn't done."""

from __future__ import annotations

import json
import re
from typing import Any

_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # controls, with the escapes that move cursors and set titles
    r"\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible, or turning the reading direction
    r"\ud800-\udfff\ufff9-\ufffb]"  # halves of characters, annotations
    r"|[\U000e0000-\U000e007f]"  # tags: invisible text
)


def escape(text: str) -> str:
    r"""One line that holds every character visibly: newline, tab and whatever else can't be seen as ``\n``, ``\t``, ``\u202e``."""
    return _HIDDEN.sub(_written, text)


def escape_lines(text: str) -> list[str]:
    """The lines of a text, each escaped."""
    return [escape(line.removesuffix("\r")) for line in text.split("\n")]


def literal(value: Any) -> str:
    """A value as JSON writes it, escaped."""
    return escape(json.dumps(value, ensure_ascii=False))


def _written(found: re.Match[str]) -> str:
    character = found[0]
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
