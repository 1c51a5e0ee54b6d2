"""Pages are short, linked and reachable, and say nothing that no test runs without saying why."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.docs.pages import DOCS, PAGES, README, SHELLS, Page, commands
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


def test_pages_are_short() -> None:
    """At most 6 kB a page, 700 words in the README, and 4 lines of 100 characters a paragraph."""
    assert [page.name for page in _LIMITED if len(page.text.encode()) > _PAGE_BYTES] == []
    assert len(Page(README).text.split()) <= _README_WORDS
    assert [
        f"{page.name}:{line}"
        for page in _WRITTEN
        for line, lines in page.paragraphs()
        if len(lines) > _PARAGRAPH_LINES or max(map(len, lines)) > _LINE_LENGTH
    ] == []


def test_links_lead_somewhere() -> None:
    assert [
        f"{page.name}: {link}" for page in _ALL for link in page.links() if _broken(page, link)
    ] == []


def _broken(page: Page, link: str) -> bool:
    if link.startswith(("https://", "http://", "mailto:")):
        return False
    name, _, anchor = link.partition("#")
    target = (page.path.parent / name).resolve() if name else page.path
    return not target.exists() or bool(anchor and anchor not in Page(target).anchors())


def test_pages_are_at_most_two_links_from_the_index() -> None:
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


def test_commands_are_run_or_say_why_not() -> None:
    """Blocks of commands are of the kind that is run, or marked with the reason."""
    blocks = [(page.name, block) for page in _ALL for block in page.blocks() if block.is_run]
    shells = [(name, block) for name, block in blocks if block.language in SHELLS]
    consoles = [block for _, block in shells if block.language == "console"]
    assert [
        f"{name}:{block.line}"
        for name, block in shells
        if block.language != "console" and not block.path
    ] == []
    assert all(commands(block) for block in consoles)


def test_the_tasks_of_users_are_answered() -> None:
    """The page for each says what the answer must contain, and is at most two links from the index."""
    tasks = [
        [cell.strip() for cell in line.split(" | ")]
        for line in _TASKS.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert len(tasks) == 30
    for task, name, answer in tasks:
        assert DOCS / name in _near_pages(), task
        assert answer in Page(DOCS / name).text, task
