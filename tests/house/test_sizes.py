"""Small files, short functions: the tail is what makes code hard to live in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.support.program import ROOT

MOST_LINES, MOST_FUNCTION_LINES = 500, 80
MEDIAN_LINES, MEDIAN_FUNCTION_LINES = 120, 10


def sources(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    ]


def product() -> list[Path]:
    return sources("trainctl", "providers", "state", "schemas")


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield (
                f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                node.end_lineno - node.lineno + 1,
            )


def test_no_file_is_long() -> None:
    """No source or test file has more than 500 lines."""
    long = {
        str(path): lines(path)
        for path in [*product(), *sources("tests")]
        if lines(path) > MOST_LINES
    }
    assert not long


def test_no_function_is_long() -> None:
    """No function has more than 80 lines."""
    found = [one for path in [*product(), *sources("tests")] for one in functions(path)]
    assert not [one for one in found if one[1] > MOST_FUNCTION_LINES]


def test_the_medians_stay_small() -> None:
    """Half of the files have at most 120 lines, and half of the functions at most 10."""
    files = [lines(path) for path in product() if lines(path) > 1]
    assert median(files) <= MEDIAN_LINES
    assert (
        median(size for path in product() for _, size in functions(path)) <= MEDIAN_FUNCTION_LINES
    )


def test_no_module_is_a_bag() -> None:
    """A module is named for its reason to exist."""
    bags = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [path for path in product() if path.stem in bags]
