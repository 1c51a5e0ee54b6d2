"""Pages are short, linked and reachable, and say nothing that no test runs without saying why."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, README, SHELLS, Page, commands, headings
from tests.support.projects.program import ROOT

_PAGE_BYTES = 6144
_README_WORDS = 700
_LINE_LENGTH = 100
_PARAGRAPH_LINES = 4
_TASKS = Path(__file__).with_name("tasks.txt")
_UNLIMITED = ("reference", "decisions")
"""Directories whose pages may be longer: generated pages, and those that nobody reads from end to end."""

_ALL = [Page(path) for path in (README, *PAGES)]
_WRITTEN = [page for page in _ALL if page.path.relative_to(ROOT).parts[1:2] != ("reference",)]
_LIMITED = [
    page for page in _ALL[1:] if page.path.relative_to(DOCS).parts[0] not in _UNLIMITED
]  # fmt: skip


def _id(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", _LIMITED, ids=_id)
def test_a_page_is_short(page: Page) -> None:
    """A page has at most 6 kB."""
    assert len(page.text.encode()) <= _PAGE_BYTES


def test_the_readme_is_short() -> None:
    """The README has at most 700 words."""
    assert len(Page(README).text.split()) <= _README_WORDS


@pytest.mark.parametrize("page", _WRITTEN, ids=_id)
def test_paragraphs_are_short(page: Page) -> None:
    """Paragraphs have at most 4 lines of at most 100 characters."""
    found = list(page.paragraphs())
    long = [line for line, lines in found if len(lines) > _PARAGRAPH_LINES]
    wide = [
        line + number
        for line, lines in found
        for number, text in enumerate(lines)
        if len(text) > _LINE_LENGTH
    ]
    assert (long, wide) == ([], [])


@pytest.mark.parametrize("page", _ALL, ids=_id)
def test_links_lead_somewhere(page: Page) -> None:
    """Each relative link names a file of the project, and its anchor a heading there."""
    broken = []
    for link in page.links():
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        if not target.exists() or (anchor and anchor not in Page(target).anchors()):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", _ALL, ids=_id)
def test_headings_differ(page: Page) -> None:
    """Anchors of equal headings depend on the program that makes them."""
    assert [title for title, count in Counter(headings(page.text)).items() if count > 1] == []


def test_pages_are_at_most_two_links_from_the_index() -> None:
    """Every page can be found from docs/index.md."""
    assert [page.name for page in _ALL[1:] if page.path not in _near_pages()] == []


@cache
def _near_pages() -> set[Path]:
    return _linked(_linked({DOCS / "index.md"}))


def _linked(paths: set[Path]) -> set[Path]:
    """These pages and those that they link to."""
    targets = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in paths
        for link in Page(path).links()
        if ":" not in link and not link.startswith("#")
    }
    return paths | {target for target in targets if target.suffix == ".md" and target.is_file()}


@pytest.mark.parametrize("page", _ALL, ids=_id)
def test_commands_are_run_or_say_why_not(page: Page) -> None:
    """Blocks of commands are of the kind that is run, or marked with the reason."""
    shells = [block for block in page.blocks() if block.is_run and block.language in SHELLS]
    unknown = [block.line for block in shells if block.language != "console" and not block.path]
    consoles = [block for block in shells if block.language == "console"]
    assert unknown == []
    assert all(commands(block) for block in consoles)


_CASES = [
    [cell.strip() for cell in line.split(" | ")]
    for line in _TASKS.read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def test_there_are_thirty_tasks() -> None:
    """The list is what users search for."""
    assert len(_CASES) == 30


@pytest.mark.parametrize(("task", "name", "answer"), _CASES, ids=lambda value: value)
def test_a_task_is_answered(task: str, name: str, answer: str) -> None:
    """The page for the task says what the answer must contain, and is at most two links from the index."""
    assert DOCS / name in _near_pages()
    assert answer in Page(DOCS / name).text, task
