"""Text that isn't ours in Markdown is text: read as GitHub reads it, it is no link, no mention, no HTML and no heading."""

from __future__ import annotations

import html
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.support.projects.plans import PlanScenario
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import warning
from trainctl.plan.planner import make_plan
from trainctl.views.plan.pages import (
    HTML_MARK,
    LIMIT,
    code_block,
    code_span,
    collapsible,
    plan_markdown,
)
from trainctl.views.terminal.text import escape

READER = MarkdownIt("commonmark", {"html": True})
hostile = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("`~<>&|[]()!*_#@:/\\ \n\r\t-+"))) | st.sampled_from(
    ["</code></summary>", "```\n<img src=x>", "[a](https://x)", "@admin", "<!--", "x`", "`` ` ``", "\u202etxt.exe"]
)  # fmt: skip


@given(hostile.filter(bool))
def test_a_code_span_is_that_text_and_nothing_else(text: str) -> None:
    """Amid a sentence a span is read as one piece of code that holds the text, its unseen characters written out."""
    rendered = READER.renderInline(f"before {code_span(text)} after")
    inside = re.fullmatch(r"before <code>(.*)</code> after", rendered, re.DOTALL)
    assert inside is not None
    assert html.unescape(inside[1]).strip() == escape(text).strip()


@given(st.lists(hostile, min_size=1, max_size=5))
def test_a_fence_holds_its_lines_and_ends_where_it_says(lines: list[str]) -> None:
    tokens = READER.parse("\n".join([*code_block(lines), "after"]))
    assert [token.type for token in tokens] == [
        "fence", "paragraph_open", "inline", "paragraph_close",
    ]  # fmt: skip
    assert tokens[0].content == "".join(escape(line) + "\n" for line in lines)


@given(hostile)
def test_a_title_closes_no_fold(text: str) -> None:
    first = collapsible(text, ["x"])[0]
    assert first.count("<") == 5
    assert "\n" not in first
    assert html.unescape(re.sub("<[^>]*>", "", first)) == escape(text)


def big(names: list[str], text: str) -> list[str]:
    """The comment of a plan that creates and destroys that many, and says that text everywhere."""
    plan = make_plan(PlanScenario().inputs())
    first = next(change for change in plan.changes if change.address.kind is Kind.PROJECT)
    changes = tuple(
        replace(
            first,
            address=Address(Kind.JOB, f"j{number}"),
            action=Action.DELETE if number % 2 else Action.CREATE,
            note=text,
            before={"source": text},
            after={name: text},
            outputs={},
        )
        for number, name in enumerate(names)
    )
    problems = tuple(warning(text, text, code="node-not-observed") for _ in names[:200])
    plan = replace(plan, changes=changes, diagnostics=problems)
    return plan_markdown(plan, rest="trainctl show p.bin")


@given(st.sampled_from([(1, 1), (1, 4000), (30, 40), (400, 1)]), hostile)
def test_a_comment_fits_and_says_what_is_left_out(counts: tuple[int, int], text: str) -> None:
    """Whatever the plan, the comment is below GitHub's limit, holds the digest, and tells how many changes it does not show."""
    count, times = counts
    lines = big([f"name{number}" for number in range(count)], text * times)
    comment = "\n".join(lines)
    assert len(comment) < LIMIT
    assert lines[-1].startswith("Plan digest: `")
    folds = [line for line in lines if line.startswith("<details>")]
    shown = sum(int(n[1]) if (n := re.search(r"\.\* \((\d+)\)", line)) else 1 for line in folds)
    left = re.search(r"\*\*(\d+) of (\d+) changes are not shown", comment)
    assert shown + (int(left[1]) if left else 0) == count
    assert lines[0] == HTML_MARK
    assert lines[2].startswith("### Plan: ")
    ends = [token.type for token in READER.parse(comment) if token.type == "heading_open"]
    assert len(ends) == 1


def test_what_goes_comes_first() -> None:
    """Where there is no room for all, it is what is destroyed that is shown, and a command that shows the rest."""
    comment = "\n".join(big([f"name{number}" for number in range(600)], "x" * 300))
    assert "<code>- job.* (300)</code>" in comment
    assert "- `job.j* (300)`\n" in comment
    assert "<code>+ job.j598</code>" not in comment
    assert "changes are not shown**, but by: `trainctl show p.bin`" in comment
