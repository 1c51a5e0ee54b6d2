"""What is said of nodes that could not be asked, beside what others told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainctl.model.away import Away
from trainctl.views.escape import escape
from trainctl.views.text import warned


def away_json(found: Iterable[Away]) -> list[dict[str, Any]]:
    """The list that the JSON forms of partial answers have as ``away``."""
    return [{"node": one.node, "ranks": list(one.ranks), "why": one.why} for one in found]


def away_lines(found: Iterable[Away], what: str) -> list[str]:
    """A warning for each: ``what`` is missing, such as ``the log``."""
    return [warned(away_words(one, what), code="node-unreachable") for one in found]


def away_words(one: Away, what: str) -> str:
    """``lab/gpu-1 doesn't answer: without the log of rank 1``."""
    return f"{escape(one.why)}: without {what} of {_ranks(one.ranks)}"


def _ranks(ranks: Sequence[int]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks))}"
