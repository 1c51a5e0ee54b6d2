"""Comparing shown output with real output, apart from values that differ each time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

ANY = "..."
"""A line that stands for any number of lines."""

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_RULES: tuple[tuple[str, str], ...] = (
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?(Z| ?UTC|[+-]\d\d:\d\d)?", "TIME"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (rf"\b({_MONTHS}) +\d+\b", "DATE"),
    (r"(?<![\d.:])\d\d:\d\d(:\d\d([.,]\d+)?)?(?![\d:])", "TIME"),
    (r"(?<![\w/.@-])[\w.+-]+@[A-Za-z0-9][\w.-]*", "USER@HOST"),
    (r"\b(?:127\.0\.0\.\d+|localhost):\d+", "SERVER"),
    (r"(?:/tmp|/home/\w+|/root)(?:/[\w.@+-]+)*/?", "PATH"),
    (r"~(?:/[\w.@+-]+)+/?", "PATH"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "ID"),
    (r"\bsha256:[0-9a-f]+…?", "DIGEST"),
    (r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b…?", "ID"),
    (r"(?:[<~] ?)?\b\d+(?:\.\d+)? ?(?:[kMGT]i?)?B/s(?!\w)", "RATE"),
    (r"\b\d+(?:\.\d+)? ?[GT]B\b", "SIZE"),
    (r"(?<=  )0\.0\d\b", "COST"),
    (r"\b(?:\d+d ?)?(?:\d+h ?)?\d+m(?: ?\d+s)?\b|\b\d+h(?: ?\d+m)?\b", "DURATION"),
    (r"(?:[<~] ?)?\b\d+(?:\.\d+)? ?(?:ms|s|min|h|seconds?|minutes?)\b", "DURATION"),
    (r"(?<=\b[Pp]id )\d+|(?<=\bPID )\d+|(?<=\bprocess )\d+", "PID"),
    (r"\b(?:pending|deploying|running)(?= +RUN\b)", "LIVE"),
    (r"[─━-]{3,}", "---"),
)
_COMPILED = tuple((re.compile(pattern), name) for pattern, name in _RULES)
_RUN_ID = r"([a-z2-7]{7})(?![\w/-])"
_RUN_ID_CONTEXTS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\brun {_RUN_ID}",
        rf"\b\d+ \({_RUN_ID}\)",
        rf"\b(?:running|completed|failed|stopped|pending|deploying|lost|created) {_RUN_ID}",
        rf'"run(?:_id)?": "{_RUN_ID}"',
        r"/\d+-([a-z2-7]{7})\b",
        rf"^{_RUN_ID} +checkpoint",
    )
)
_PROGRESS = re.compile(
    r"\w+\.\S+: \w+ing\b(?!.*\brun \d).*"
    r"|.* observe +(?:pending|deploying|running) [a-z2-7]{7}( .*)?"
)
"""A line that says what a change or a run is at; how many there are depends on its speed."""
_RESULT = re.compile(r"[a-z]+\.[\w-]\S*: \S.*")
"""A line that says that a change or a run is done, which of one apply are in any order."""


def displayed(lines: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """Real output as pages show it."""
    shown = [line for line in lines if not _PROGRESS.fullmatch(line)]
    for real, place in places.items():
        shown = [line.replace(real, place) for line in shown]
    return shown


def normalized(
    lines: Sequence[str], page: Iterable[str] = (), places: Mapping[str, str] = {}
) -> list[str]:
    """The lines with names for volatile values; ``page`` is all output so far, which shows what ids of runs are."""
    contexts = itertools.product(page, _RUN_ID_CONTEXTS)
    ids = {match[1] for line, context in contexts for match in context.finditer(line)}
    result = [_normalize(line, ids, places) for line in lines if not _PROGRESS.fullmatch(line)]
    ordered: list[str] = []
    for is_result, group in itertools.groupby(result, lambda line: bool(_RESULT.fullmatch(line))):
        block = list(group)
        if is_result:  # changes first, then ends of runs
            block.sort(key=lambda line: (re.search(r": run \d", line) is not None, line))
        ordered += block
    text = "\n".join(ordered).strip("\n")
    return text.split("\n") if text else []


def _normalize(line: str, ids: set[str], places: Mapping[str, str]) -> str:
    for real, shown in places.items():
        line = line.replace(real, shown)
    for item in ids:
        line = line.replace(item, "RUN")
    for pattern, name in _COMPILED:
        line = pattern.sub(name, line)
    return re.sub(r"(?<=\S)\s+", " ", line).rstrip()


def matches(
    shown: Sequence[str],
    real: Sequence[str],
    shown_page: Iterable[str],
    real_page: Iterable[str],
    places: Mapping[str, str],
) -> bool:
    """Whether the shown lines are the real ones, where a line ``...`` is any number of them."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == ANY else re.escape(line) + r"\n"
        for line in normalized(shown, shown_page)
    )
    lines = (f"{line}\n" for line in normalized(real, real_page, places))
    return re.fullmatch(pattern, "".join(lines)) is not None
