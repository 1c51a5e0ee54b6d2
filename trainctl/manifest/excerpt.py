"""Excerpts of a manifest for diagnostics; a line that may hold a secret is hidden.

Works on text, because files that can't be parsed are shown, too. Hidden is every line with or below a key that may
hold a secret, ``environment_variables``, or an anchor, which may be used below such a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.model.credentials import has_credential, is_secret_key
from trainctl.model.diagnostics import Position

_KEY = compile_lazily(r"""(?<![\w.-])([\w.-]++)["']?\s*+[:=]\s*+""")
_HEADER = compile_lazily(r"\s*\[{1,2}[^\]]*")
_ANCHOR = compile_lazily(r"(?:^|(?<=[\s,\[{]))&\S+\s*+")
_VARIABLES = compile_lazily(r"""environment_variables["']?\s*+[:=]?\s*+""")
_QUOTED_OR_COMMENT = compile_lazily(
    r"""(?<!\w)"(?:\\.|[^"\\])*"|(?<!\w)'(?:[^']|'')*'|(?:^|(?<=\s))\#[^\n]*""",
    re.DOTALL | re.MULTILINE,
)
_QUOTE = compile_lazily(r"""(?<!\w)["']""")
"""A quote that may start a string; not an apostrophe in a word."""
_BRACKET = compile_lazily(r"[\[\]{}]")
_PEM, _PEM_END = "-----BEGIN ", "-----END "
_MAX_LINE = 5000
"""Later lines are not shown: all lines above must be scanned for each excerpt."""


def excerpt(where: Position) -> tuple[str, int] | None:
    """Return the line at a position and the column from 0; None if it is hidden."""
    if where.lines is None or where.line is None:
        return None
    if not 0 < where.line <= min(len(where.lines), _MAX_LINE):
        return None
    line = where.lines[where.line - 1].removesuffix("\r")
    column = (where.column or 1) - 1
    if column > len(line) or not line.strip():
        return None
    hidden = has_credential(line) or _hides(line)
    above = where.lines[: where.line - 1]
    return None if hidden or _is_in_hidden_block(above, line) else (line, column)


def _is_in_hidden_block(above: Sequence[str], line: str) -> bool:
    """Whether the line is inside a block whose content is hidden."""
    if line.lstrip().startswith(("? ", ": ")):
        return True
    text = "\n".join(above)
    if text.rfind(_PEM) > text.rfind(_PEM_END):
        return True
    bare = _QUOTED_OR_COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    if _QUOTE.search(bare):
        return True
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth = max(0, depth + (1 if bracket in "{[" else -1))
    if depth:
        return any(map(_hides, above))
    return any(map(_hides, _parents(above, line)))


def _parents(above: Sequence[str], line: str) -> Iterator[str]:
    """Yield the parent lines: each less indented line, and in TOML the nearest header."""
    limit, is_item = _indentation(line)
    header = False
    for candidate in reversed(above):
        if not candidate.strip() or candidate.lstrip().startswith("#"):
            continue
        indentation, item = _indentation(candidate)
        if _HEADER.match(candidate) and not header:
            header = True
            yield candidate
        elif indentation < limit or (is_item and indentation == limit and not item):
            yield candidate
            limit, is_item = indentation, item


def _indentation(line: str) -> tuple[int, bool]:
    """Return the indentation of a line and whether it is an item of a list."""
    text = line.lstrip()
    return len(line) - len(text), text.startswith("-")


def _hides(line: str) -> bool:
    """Whether the line, and the block below it, may hold a secret."""
    header = _HEADER.match(line)
    keys = [key[1] for key in _KEY.finditer(line)]
    keys += re.split(r"[\[\].\s\"']+", header[0]) if header else ()
    return (
        _VARIABLES.search(line) is not None
        or _ANCHOR.search(line) is not None
        or any(key != "secrets" and is_secret_key(key) for key in keys)
    )
