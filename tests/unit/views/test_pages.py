"""Plan files of hostile authors: whatever value is anywhere in one, its Markdown holds it as text, or it is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from tests.support.projects.html_pages import page_text
from tests.support.projects.plans import PlanScenario, desired, state_after
from tests.support.tiers import points
from trainctl.base.json import digest
from trainctl.cli.commands.plan import _show
from trainctl.cli.options import PlanFormat
from trainctl.cli.session import CliSession
from trainctl.errors import TrainctlError
from trainctl.model.diagnostics import warning
from trainctl.model.json_codec import from_json
from trainctl.model.run import RunStatus
from trainctl.plan.changes import plan_digest
from trainctl.plan.plan_file import write_plan
from trainctl.plan.planner import make_plan
from trainctl.plan.values import Plan, PlanOptions
from trainctl.views.plan.html import html_page, preformatted
from trainctl.views.plan.pages import LIMIT

TEXT = (
    "@admin <img src=x> [a](https://evil.example) www.evil.example ```\n</details># h\u202e\x1b[2J`"
)
VALUES: list[Any] = [TEXT, TEXT * 3000, 10**400, -1, 1e308, None, [TEXT], {TEXT: TEXT}]
READER = MarkdownIt("commonmark", {"html": True})
OURS = re.compile(
    r"(<!-- [\w ,]+ -->|<details><summary><code>[^<>]*</code></summary>|</details>)\n?"
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    if path:
        yield path
    for key, item in items:
        yield from leaves(item, (*path, key))


def changed(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> str:
    """The text of a plan file with another value in its plan, and digests that are right."""
    document = json.loads(json.dumps(document))
    at = document["plan"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    try:
        plan = from_json(Plan, document["plan"])
        document["plan"]["digest"] = plan_digest(plan.changes, plan.lineage, plan.policies)
    except Exception:  # noqa: BLE001 (the author's problem; the file is refused)
        pass
    body = {name: document[name] for name in ("plan", "desired", "lineage")}
    return json.dumps(document | {"checksum": digest(body)})


def unsafe(markdown: str) -> list[str]:
    """What of a comment would be more than text."""
    contents = []
    for token in READER.parse(markdown):
        if token.type == "html_block" and not OURS.fullmatch(token.content):
            contents.append(token.content)
        for child in token.children or ():
            if child.type in ("link_open", "image", "html_inline"):
                contents.append(child.type)
            elif child.type == "text" and re.search(r"@\w|www\.|https?:", child.content):
                contents.append(child.content)
    return contents + ["too long"] * (len(markdown) > LIMIT)


def documents() -> list[dict[str, Any]]:
    """Plan files: of new resources, and of the end of a job that runs."""
    scenario = PlanScenario()
    created = make_plan(scenario.inputs(diagnostics=(warning("a", "b", code="c"),)))
    state = state_after(
        created, status=RunStatus.RUNNING, reported={"sync": {"pending": ["checkpoint-1"]}}
    )
    ended = make_plan(scenario.inputs(state, PlanOptions(destroy=True, delete_checkpoints=True)))
    resources = desired(*scenario.resources())
    return [json.loads(write_plan(plan, resources, "1")) for plan in (created, ended)]


@pytest.mark.parametrize("most", [40, pytest.param(0, marks=pytest.mark.long)])
def test_every_value_of_a_hostile_plan_is_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    """Each place with one of the values in turn; some plans are refused."""
    cases = [(document, path) for document in documents() for path in leaves(document["plan"])]
    file, shown, refused = tmp_path / "p.json", 0, 0
    for number in points(len(cases), most):
        document, path = cases[number - 1]
        value = VALUES[number % len(VALUES)]
        file.write_text(changed(document, path, value))
        for format_ in (PlanFormat.MARKDOWN, PlanFormat.TEXT, PlanFormat.HTML):
            try:
                _show(CliSession.of_process(), file, format_)
            except TrainctlError:
                capsys.readouterr()
                refused += 1
                continue
            out, err = capsys.readouterr()
            shown += 1
            assert not re.search("[\x1b\u202e]", out + err), (path, value)
            if format_ is PlanFormat.HTML:
                page_text(out)
            if format_ is PlanFormat.MARKDOWN:
                assert not unsafe(out), (path, value)
    assert shown > 5
    assert refused > 1


def test_names_that_are_markup_are_text() -> None:
    """Elements and references are shown as they are written, invisible characters as escapes."""
    evil = "<script>alert('&amp;')</script>\x1b[31m\u202e"
    text = page_text("\n".join(html_page(evil, [preformatted([evil])])))
    assert text.count("<script>alert('&amp;')</script>\\u001b[31m\\u202e") == 3


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"trainctl_plan": {"major": 1}}', "{}", "1e999", ""]
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    """However deep."""
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(TrainctlError):
        _show(CliSession.of_process(), tmp_path / "p.json", PlanFormat.MARKDOWN)
