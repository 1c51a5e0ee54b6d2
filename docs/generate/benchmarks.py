"""``docs/reference/benchmarks.md``, from ``docs/reference/benchmarks.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.generate.markdown import table, text_of

DATA = Path(__file__).parents[1] / "reference" / "benchmarks.toml"
_INTRODUCTION = """\
# Benchmarks

Each benchmark runs both sides in turn on one machine; a figure beyond its limit fails it.
A ratio is trainctl's value divided by that of the other side. Rates and times depend on the load.
"""


def page() -> str:
    """Return the text of the page."""
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    lines = [_INTRODUCTION, f"Machine: {data['machine']}", ""]
    for benchmark in data["benchmark"]:
        lines += _section(benchmark)
    return text_of(lines)


def _section(benchmark: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {benchmark['title']}", "")
    yield from (f"`{benchmark['command']}` at commit `{benchmark['commit']}`:", "")
    rows = (
        (one["case"], one["trainctl"], one["other"], one["figure"], one["limit"])
        for one in benchmark["results"]
    )
    yield from table(("case", "trainctl", benchmark["other"], "figure", "limit"), rows)
