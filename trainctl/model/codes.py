"""The codes of errors and warnings with what they mean: ``trainctl/errors.md``, which is documentation and data at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

_HEADING = re.compile(r"^### (\S+)\n", re.MULTILINE)
_GROUP = re.compile(r"^## .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A code, in one sentence and at length; ``text`` is Markdown in which examples are indented."""

    code: str
    title: str
    text: str


def page() -> str:
    """The whole page, in Markdown."""
    return (files("trainctl") / "errors.md").read_text(encoding="utf-8")


def explanations() -> dict[str, Explanation]:
    """Every code's explanation, in the page's order."""
    parts = _HEADING.split(_GROUP.sub("", page()))[1:]
    return {
        code: _explanation(code, body) for code, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _explanation(code: str, body: str) -> Explanation:
    title, _, text = body.strip().partition("\n\n")
    return Explanation(code, title, text)
