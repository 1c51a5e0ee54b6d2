"""The line of a manifest that a diagnostic is about, without what may be a secret.

What a line holds is judged by the text alone, as files that can't be parsed are shown, too, and on the safe side: left out is what stands
behind or below a key that sounds like a secret, ``environment_variables``, or an anchor (an alias may put it below such a key). The name
of a secret behind ``auth_secret_name`` is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainctl.manifest.credentials import HIDDEN, credential_spans, is_secret_key
from trainctl.model.address import NAME
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
"""One that may begin something: an apostrophe within a word and the inches of a size are none."""
_BRACKET = re.compile(r"[\[\]{}]")
_PEM, _PEM_END = "-----BEGIN ", "-----END "
_MOST_LINES = 5000
"""Nothing is shown of what lies further down than this, as all that is above has to be read for it."""


def excerpt(where: Position) -> tuple[str, int] | None:
    """The line at a position, secrets replaced, and the column in that, from 0; None where nothing can be shown."""
    if where.lines is None or where.line is None:
        return None
    if not 0 < where.line <= min(len(where.lines), _MOST_LINES):
        return None
    line = where.lines[where.line - 1].removesuffix("\r")
    column = (where.column or 1) - 1
    if column > len(line) or not line.strip():
        return None
    return (
        None if _is_in_hidden_block(where.lines[: where.line - 1], line) else _masked(line, column)
    )


def _masked(line: str, column: int) -> tuple[str, int]:
    shown, at, caret = "", 0, column
    for start, end in _merge_spans([*credential_spans(line), *_hidden_value_start(line)]):
        shown += line[at:start]
        if end <= column:
            caret += len(HIDDEN) - (end - start)
        elif start <= column:
            caret = len(shown)
        shown += HIDDEN
        at = end
    return shown + line[at:], caret


def _hidden_value_start(line: str) -> list[tuple[int, int]]:
    """What follows the first key or anchor that hides what follows it."""
    end = len(line.rstrip())
    keys = (key for key in _KEY.finditer(line) if _hides(key[1]))
    starts = [key.end() for key in keys if not _is_secret_name(line, key)]
    starts += [anchor.end() for anchor in _ANCHOR.finditer(line)]
    starts += [variables.end() for variables in _VARIABLES.finditer(line)]
    return [(start, end) for start in sorted(starts)[:1] if start < end]


def _hides(key: str) -> bool:
    return key != "secrets" and is_secret_key(key)


def _is_secret_name(line: str, key: re.Match[str]) -> bool:
    """Whether this is the name that a secret is declared under: what is said of it names it, too."""
    name = _NAME.match(line, key.end()) if key[1].endswith("secret_name") else None
    if name is None:
        return False
    ends = _ENDS_IN_BRACES if "{" in line[: key.start()] else _ENDS
    return ends.match(line, name.end()) is not None


def _is_in_hidden_block(above: Sequence[str], line: str) -> bool:
    """Whether the line lies inside something that hides what it holds."""
    if line.lstrip().startswith(("? ", ": ")):
        return True
    whole = "\n".join(above)
    if whole.rfind(_PEM) > whole.rfind(_PEM_END):
        return True
    bare = _QUOTED_OR_COMMENT.sub(lambda found: "\n" * found[0].count("\n"), whole)
    if _QUOTE.search(bare):
        return True
    opened = _open_bracket(bare)
    if opened is not None:
        at = bare.count("\n", 0, opened)
        if any(_hides_block(one) for one in above[at:]):
            return True
        above, line = above[:at], above[at]
    return any(_hides_block(parent) for parent in _parents(above, line))


def _open_bracket(text: str) -> int | None:
    """Where the first bracket opens that isn't closed."""
    depth, opened = 0, None
    for found in _BRACKET.finditer(text):
        if found[0] in "{[":
            opened = found.start() if depth == 0 else opened
            depth += 1
        else:
            depth = max(0, depth - 1)
    return opened if depth else None


def _parents(above: Sequence[str], line: str) -> Iterator[str]:
    """The lines that a line lies below: each with less indentation, and in TOML the nearest header."""
    within, listed = _indentation(line)
    header = False
    for one in reversed(above):
        if not one.strip() or one.lstrip().startswith("#"):
            continue
        indentation, item = _indentation(one)
        if _HEADER.match(one) and not header:
            header = True
            yield one
        elif indentation < within or (listed and indentation == within and not item):
            yield one
            within, listed = indentation, item


def _indentation(line: str) -> tuple[int, bool]:
    """How far a line is indented, and whether it is an item of a list."""
    text = line.lstrip()
    return len(line) - len(text), text.startswith("-")


def _hides_block(line: str) -> bool:
    """Whether what lies below the line is hidden."""
    header = _HEADER.match(line)
    return (
        _VARIABLES.search(line) is not None
        or any(_hides(key[1]) for key in _KEY.finditer(line))
        or (header is not None and any(map(_hides, re.split(r"[\[\].\s\"']+", header[0]))))
        or _ANCHOR.search(line) is not None
    )


def _merge_spans(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, those that overlap or touch as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
