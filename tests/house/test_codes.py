"""Every code that the program uses is explained, and every explanation is of one that it uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.manifests import problems
from tests.support.program import ROOT
from trainctl.model.codes import Explanation, explanations

EXPLAINED = explanations()
SOURCES = [
    path
    for room in ("trainctl", "providers", "state")
    for path in sorted((ROOT / room).rglob("*.py"))
    if not path.is_relative_to(ROOT / "trainctl" / "node")
]


def codes(tree: ast.AST) -> Iterator[str]:
    """Codes that are written in the source: arguments called ``code``, a class's ``usual_code``, the last of ``Words``."""
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            values += [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if isinstance(node.func, ast.Name) and node.func.id == "Words":
                values += node.args[2:]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id == "usual_code" for one in targets):
                values.append(node.value)
        yield from (
            one.value
            for one in values
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        )


def used() -> dict[str, Path]:
    return {code: path for path in SOURCES for code in codes(ast.parse(path.read_text()))}


def test_every_code_is_explained() -> None:
    """``trainctl/errors.md`` has a section for each code that the source names."""
    found = used()
    assert len(found) > 100
    assert {code: str(path) for code, path in found.items() if code not in EXPLAINED} == {}


def test_every_explanation_is_of_a_code_in_use() -> None:
    """No section is left of a code that nothing uses."""
    assert set(EXPLAINED) - set(used()) == set()


def test_an_error_without_a_class_of_its_own_names_its_cause() -> None:
    """``TrainctlError`` itself is raised with a code; only what the system refuses has none to give."""
    bare = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "TrainctlError"
        and not any(keyword.arg == "code" for keyword in node.keywords)
    ]
    assert [place.partition(":")[0] for place in bare] == ["trainctl/cli/invoke.py"]


@pytest.mark.parametrize("one", EXPLAINED.values(), ids=lambda one: one.code)
def test_an_explanation_is_short_and_whole(one: Explanation) -> None:
    """A code is dashed words; its title one line that is a sentence; the text ends properly and fits a screen."""
    assert one.code.replace("-", "").isalpha()
    assert one.code.islower()
    assert "\n" not in one.title
    assert one.title.endswith(".")
    assert one.text == "" or one.text.endswith(".") or "\n    " in f"\n{one.text}"
    assert len(one.text.splitlines()) < 40


def examples(text: str) -> dict[str, str]:
    """The manifests under ``Wrong:`` and ``Right:``."""
    found: dict[str, str] = {}
    title = ""
    for line in text.splitlines():
        if line in ("Wrong:", "Right:"):
            title = line
        elif line.startswith("    ") and title:
            found[title] = found.get(title, "") + line[4:] + "\n"
    return found


WITH_EXAMPLES = [one for one in EXPLAINED.values() if examples(one.text)]


@pytest.mark.parametrize("one", WITH_EXAMPLES, ids=lambda one: one.code)
def test_examples_are_as_wrong_and_as_right_as_they_say(one: Explanation, tmp_path: Path) -> None:
    """The manifest under ``Wrong:`` has the problem that is explained, the one under ``Right:`` has none."""
    shown = examples(one.text)
    assert one.code in {found.code for found in problems(tmp_path, shown["Wrong:"])}
    assert [found.summary for found in problems(tmp_path, shown["Right:"])] == []
