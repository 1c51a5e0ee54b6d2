"""Plans as pages of HTML: they say what the comment says, and nothing in them is obeyed."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from tests.golden.plan.test_screens import NOW, PLANS, hostile
from trainctl.model.action import Action
from trainctl.plan.values import Plan
from trainctl.views.plan.pages import (
    HTML_MARK,
    html_page,
    plan_html,
    plan_markdown,
    preformatted,
)
from trainctl.views.plan.text import plan_text

ALLOWED = {
    *("html", "head", "meta", "title", "style", "body"),
    *("h1", "h2", "p", "ul", "li", "code", "pre", "span", "details", "summary", "div"),
    *("svg", "path", "rect", "text"),
}
ALONE = {"meta"}
HARMLESS = {
    *("class", "lang", "charset", "name", "content", "http-equiv"),
    *("xmlns", "width", "height", "viewbox", "font-family", "font-size", "fill", "stroke"),
    *("d", "x", "y", "rx"),
}


class Reader(HTMLParser):
    """What a browser would make of a page: its elements and attributes, balanced, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ALONE:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """It ends what was opened last."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text that is shown, and not the style."""
        if self._open[-1:] != ["style"]:
            self.text += data


def written(plan: Plan) -> str:
    """The page of a plan."""
    return "\n".join(plan_html(plan, NOW))


def words(text: str) -> set[str]:
    """Its words, without what only marks them up in Markdown."""
    marked = re.sub(
        r"</?(details|summary|code)>|:?\*\*|^`{3,}.*$|^(###|-) |`", "", text, flags=re.MULTILINE
    )
    return set(marked.split())


@pytest.mark.parametrize("make", PLANS)
def test_a_page_says_what_the_comment_says(make: Callable[[], Plan]) -> None:
    """Each word of the comment stands on the page, which has no script, no link and nothing from elsewhere."""
    plan = make()
    comment = "\n".join(plan_markdown(plan, NOW)).removeprefix(HTML_MARK)
    found = Reader(written(plan))

    assert words(comment) - words(found.text) <= {"!"}
    assert found.elements <= ALLOWED
    assert found.attributes <= HARMLESS
    assert "url(" not in written(plan)
    assert "//" not in re.sub(r"[a-z0-9]+://", "", written(plan)).replace("file:./", "")


def test_names_that_are_markup_are_text() -> None:
    """Elements and references in a name are shown as they are written, and what can't be seen is written out."""
    evil = "<script>alert('&amp;')</script>\x1b[31m\u202e"
    found = Reader("\n".join(html_page(evil, [preformatted([evil], ["add"])])))
    shown = "<script>alert('&amp;')</script>\\u001b[31m\\u202e"

    assert found.text.count(shown) == 3
    assert "script" not in found.elements
    assert "\x1b" not in written(hostile())
    assert "\u202e" not in written(hostile())


def test_concise_leaves_out_the_changes() -> None:
    """The counts, what goes and the tables stay."""
    (plan,) = (make() for make in PLANS if make.__name__ == "destroyed")
    whole, short = written(plan), "\n".join(plan_html(plan, NOW, concise=True))

    assert "<details>" in whole
    assert "<details>" not in short
    assert plan.digest in short
    assert "Destroys" in short


def test_concise_text_names_what_is_destroyed_and_replaced() -> None:
    """Also where everything is destroyed, which is said in full otherwise."""
    by_name = {make.__name__: make() for make in PLANS}
    lines = plan_text(by_name["destroyed"], now=NOW, concise=True)
    gone = [c.address for c in by_name["destroyed"].changes if c.action is Action.DELETE]

    assert gone
    assert {f"  {address}" for address in gone} <= set(lines)
    plans = [(plan, c) for plan in by_name.values() for c in plan.changes]
    replaced = [(plan, c.address) for plan, c in plans if c.action is Action.REPLACE]
    assert replaced
    for plan, address in replaced:
        assert f"  {address}" in plan_text(plan, now=NOW, concise=True)
