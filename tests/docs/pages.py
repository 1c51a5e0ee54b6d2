"""The pages of the documentation: their blocks, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.projects.program import ROOT

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
SHELLS = ("console", "sh", "bash", "shell", "zsh")
"""Languages of blocks that hold commands."""

_TITLE = re.compile(r'title="([^"]+)"')
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
_FIXTURE = re.compile(r"<!-- fixture: ([\w\d -]+?) -->")
_FIXTURE_LINES = 5
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is the number of its first line, that of the fence."""

    language: str
    path: str
    text: str
    line: int
    is_run: bool


@dataclass(frozen=True)
class Command:
    """A command of a console block, its output and exit code; ``line`` is where its output starts."""

    text: str
    output: tuple[str, ...]
    exit_code: int
    line: int


@dataclass(frozen=True)
class Page:
    """One page of Markdown."""

    path: Path

    @property
    def name(self) -> str:
        """The path relative to the repository."""
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def fixtures(self) -> list[str]:
        """The services that the page asks for."""
        head = "\n".join(self.text.splitlines()[:_FIXTURE_LINES])
        match = _FIXTURE.search(head)
        return match[1].split() if match else []

    def blocks(self) -> list[Block]:
        lines = self.text.splitlines()
        blocks = []
        for token in _tokens(self.text):
            if token.type != "fence" or token.map is None:
                continue
            language, _, rest = token.info.strip().partition(" ")
            title = _TITLE.search(rest)
            line = token.map[0]
            before = lines[line - 1].strip() if line else ""
            blocks.append(
                Block(
                    language, title[1] if title else "", token.content, line + 1,
                    _NOT_RUN.fullmatch(before) is None,
                )
            )  # fmt: skip
        return blocks

    def links(self) -> list[str]:
        attributes = {"link_open": "href", "image": "src"}
        return [
            str(child.attrs[attributes[child.type]])
            for token in _tokens(self.text)
            for child in token.children or ()
            if child.type in attributes
        ]

    def anchors(self) -> set[str]:
        """Anchors of the headings, as GitHub makes them."""
        anchors: set[str] = set()
        for title in headings(self.text):
            base = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            anchor, number = base, 0
            while anchor in anchors:
                number += 1
                anchor = f"{base}-{number}"
            anchors.add(anchor)
        return anchors

    def paragraphs(self) -> Iterator[tuple[int, list[str]]]:
        """The first line's number and the lines of each paragraph."""
        lines = self.text.splitlines()
        for token in _tokens(self.text):
            if token.type == "paragraph_open" and token.map is not None:
                first, end = token.map
                yield first + 1, lines[first:end]


def headings(text: str) -> list[str]:
    """The text of each heading, without its markup."""
    tokens = _tokens(text)
    return [
        "".join(child.content for child in content.children or ())
        for opening, content in pairwise(tokens)
        if opening.type == "heading_open"
    ]


def commands(block: Block) -> list[Command]:
    commands: list[Command] = []
    words: list[str] = []
    output: list[str] = []
    start = block.line

    def finish() -> None:
        if words:
            code = re.fullmatch(r"# exit code: (\d+)", output[-1]) if output else None
            shown = output[:-1] if code else output
            commands.append(
                Command("\n".join(words), tuple(shown), int(code[1]) if code else 0, start)
            )

    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            finish()
            words, output, start = [line[2:]], [], number + 1
        elif line.startswith("> ") and words and not output:
            words.append(line[2:])
            start = number + 1
        else:
            assert words, f"line {number}: output before a command"
            output.append(line)
    finish()
    return commands


@cache
def _tokens(text: str) -> list[Token]:
    return _MARKDOWN.parse(text)
