"""Explanations of codes: short, complete, with examples that are as wrong and as right as they say."""

from __future__ import annotations

from pathlib import Path

from tests.support.projects.manifests import problems
from trainctl import errors
from trainctl.model.diagnostics import explanations

EXPLAINED = explanations()


def test_explanations_are_short_and_complete() -> None:
    """A code is dashed words; its title one sentence on a line; the text ends properly and fits a screen."""
    for code, explanation in EXPLAINED.items():
        title, text = explanation.title, explanation.text
        assert explanation.code == code
        assert code.replace("-", "").isalpha(), code
        assert code.islower(), code
        assert "\n" not in title, code
        assert title.endswith("."), code
        assert text == "" or text.endswith(".") or "\n    " in f"\n{text}", code
        assert len(text.splitlines()) < 40, code


def examples(text: str) -> dict[str, str]:
    lines: dict[str, str] = {}
    title = ""
    for line in text.splitlines():
        if line in ("Wrong:", "Right:"):
            title = line
        elif line.startswith("    ") and title:
            lines[title] = lines.get(title, "") + line[4:] + "\n"
    return lines


def test_examples_are_as_wrong_and_as_right_as_they_say(tmp_path: Path) -> None:
    """The manifest under ``Wrong:`` has the problem that is explained, the one under ``Right:`` has none."""
    shown = {code: examples(explanation.text) for code, explanation in EXPLAINED.items()}
    pairs = {code: line for code, line in shown.items() if line}
    assert len(pairs) > 20
    for code, manifests in pairs.items():
        place = tmp_path / code
        place.mkdir()
        assert code in {problem.code for problem in problems(place, manifests["Wrong:"])}
        right = [problem.summary for problem in problems(place, manifests["Right:"])]
        assert (code, right) == (code, [])


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    """In the docstring of the module, each class below its base, with its exit code."""

    def drawn(kind: type[errors.TrainctlError], indent: str) -> list[str]:
        below = [item for item in kind.__subclasses__() if item.__module__ == errors.__name__]
        row = f"{indent + kind.__name__:<28}{kind.exit_code:>3}"
        return [row, *(line for item in below for line in drawn(item, f"{indent}  "))]

    tree = (errors.__doc__ or "").split("\n\n")[1]
    assert tree.splitlines() == drawn(errors.TrainctlError, "    ")
