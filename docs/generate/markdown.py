"""Parts of Markdown pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, followed by an empty line."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return [*lines, ""]


def fence(language: str, text: str) -> list[str]:
    """A block of code, followed by an empty line."""
    return [f"```{language}", *text.strip("\n").splitlines(), "```", ""]


def code(text: str) -> str:
    """The text as code; empty for none."""
    return f"`{text}`" if text else ""


def prose(docstring: str) -> str:
    """A docstring's text as Markdown."""
    return docstring.replace("``", "`")


def text_of(lines: Iterable[str]) -> str:
    """The page of these lines, with one line end at its end."""
    return "\n".join(lines).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
