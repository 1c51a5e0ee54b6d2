"""Excerpts of a manifest for diagnostics, with possible secrets masked.

Works on text, because files that can't be parsed are shown, too. Masked is everything after or below a key that may
hold a secret, ``environment_variables``, or an anchor, which may be used below such a key. The name of a secret after
``auth_secret_name`` is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainctl.model.address import NAME
from trainctl.model.credentials import HIDDEN, credential_spans, is_secret_key
from trainctl.model.diagnostics import Position

_KEY = re.compile(r"""(?<![\w.-])([\w.-]++)["']?\s*+[:=]\s*+""")
_NAME = re.compile(rf"""(["']?){NAME.pattern}\1""")
_ENDS = re.compile(r"\s*$|\s+#")
_ENDS_IN_BRACES = re.compile(r"\s*(?:[,}]|$)")
_HEADER = re.compile(r"\s*\[{1,2}[^\]]*")
_ANCHOR = re.compile(r"(?:^|(?<=[\s,\[{]))&\S+\s*+")
_VARIABLES = re.compile(r"""environment_variables["']?\s*+[:=]?\s*+""")
_QUOTED_OR_COMMENT = re.compile(
    r"""(?<!\w)"(?:\\.|[^"\\])*"|(?<!\w)'(?:[^']|'')*'|(?:^|(?<=\s))\#[^\n]*""",
    re.DOTALL | re.MULTILINE,
)
_QUOTE = re.compile(r"""(?<!\w)["']""")
"""A quote that may start a string; not an apostrophe in a word."""
_BRACKET = re.compile(r"[\[\]{}]")
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
    return None if _is_in_hidden_block(where.lines[: where.line - 1], line) else _mask(line, column)


def _mask(line: str, column: int) -> tuple[str, int]:
    shown, position, caret = "", 0, column
    for start, end in _merge_spans([*credential_spans(line), *_hidden_value_span(line)]):
        shown += line[position:start]
        if end <= column:
            caret += len(HIDDEN) - (end - start)
        elif start <= column:
            caret = len(shown)
        shown += HIDDEN
        position = end
    return shown + line[position:], caret


def _hidden_value_span(line: str) -> list[tuple[int, int]]:
    """Return the span after the first key or anchor whose value is hidden."""
    end = len(line.rstrip())
    keys = (key for key in _KEY.finditer(line) if _hides(key[1]))
    starts = [key.end() for key in keys if not _is_secret_name(line, key)]
    starts += [anchor.end() for anchor in _ANCHOR.finditer(line)]
    starts += [variables.end() for variables in _VARIABLES.finditer(line)]
    return [(start, end) for start in sorted(starts)[:1] if start < end]


def _hides(key: str) -> bool:
    return key != "secrets" and is_secret_key(key)


def _is_secret_name(line: str, key: re.Match[str]) -> bool:
    """Whether the value of the key is only the name of a secret."""
    name = _NAME.match(line, key.end()) if key[1].endswith("secret_name") else None
    if name is None:
        return False
    ends = _ENDS_IN_BRACES if "{" in line[: key.start()] else _ENDS
    return ends.match(line, name.end()) is not None


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
    opened = _open_bracket(bare)
    if opened is not None:
        first = bare.count("\n", 0, opened)
        if any(map(_hides_block, above[first:])):
            return True
        above, line = above[:first], above[first]
    return any(map(_hides_block, _parents(above, line)))


def _open_bracket(text: str) -> int | None:
    """Return the position of the first bracket that isn't closed."""
    depth, opened = 0, None
    for bracket in _BRACKET.finditer(text):
        if bracket[0] in "{[":
            opened = bracket.start() if depth == 0 else opened
            depth += 1
        else:
            depth = max(0, depth - 1)
    return opened if depth else None


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


def _hides_block(line: str) -> bool:
    """Whether the block below the line is hidden."""
    header = _HEADER.match(line)
    return (
        _VARIABLES.search(line) is not None
        or any(_hides(key[1]) for key in _KEY.finditer(line))
        or (header is not None and any(map(_hides, re.split(r"[\[\].\s\"']+", header[0]))))
        or _ANCHOR.search(line) is not None
    )


def _merge_spans(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort the spans and merge those that overlap or touch."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
