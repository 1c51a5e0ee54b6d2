"""The source as a whole: small files, short functions, and codes of errors that are explained."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from tests.mutation.mutations import MUTATIONS
from tests.support.projects.program import ROOT
from trainctl.model.diagnostics import explanations

MOST_LINES, MOST_FUNCTION_LINES = 500, 80
MEDIAN_LINES, MEDIAN_FUNCTION_LINES = 220, 10


class Facts(NamedTuple):
    """What one pass over a file's syntax tree finds."""

    lines: int
    functions: dict[str, int]
    """Lines of each function by place and name."""
    codes: set[str]
    """Codes of errors: arguments named ``code``, ``default_code`` of classes, the last of ``DiagnosticText``."""
    bare: list[str]
    """Errors of the base class without a code."""
    imports: set[str]
    """Top-level packages that it imports."""


def sources(*folders: str) -> list[Path]:
    """Python files below folders of the project."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def facts(folder: str) -> dict[Path, Facts]:
    """Facts of each file below a folder."""
    return {path: _facts_of(path) for path in sources(folder)}


def product() -> dict[Path, Facts]:
    """Facts of all that is installed."""
    return {
        path: file_facts
        for folder in ("trainctl", "providers", "state", "schemas")
        for path, file_facts in facts(folder).items()
    }


def _facts_of(path: Path) -> Facts:
    text = path.read_text()
    file_facts = Facts(len(text.splitlines()), {}, set(), [], set())
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            file_facts.functions[name] = (node.end_lineno or 0) - node.lineno + 1
        elif isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name == "TrainctlError" and not given:
                file_facts.bare.append(str(path.relative_to(ROOT)))
            file_facts.codes.update(
                _texts(given + (node.args[2:] if name == "DiagnosticText" else []))
            )
        elif isinstance(node, ast.Import | ast.ImportFrom):
            file_facts.imports.update(_imported(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == "default_code" for each in targets):
                file_facts.codes.update(_texts([node.value]))
    return file_facts


def _imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    names = (
        [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
    )
    return {name.partition(".")[0] for name in names}


def _texts(values: list[ast.expr]) -> list[str]:
    return [
        value.value
        for value in values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]


def test_no_file_is_long() -> None:
    lengths = {str(path): len(path.read_text().splitlines()) for path in sources("tests")}
    lengths |= {str(path): file_facts.lines for path, file_facts in product().items()}
    assert {path: count for path, count in lengths.items() if count > MOST_LINES} == {}


def test_no_function_is_long() -> None:
    sizes = {
        name: size
        for file_facts in product().values()
        for name, size in file_facts.functions.items()
    }
    assert {name: size for name, size in sizes.items() if size > MOST_FUNCTION_LINES} == {}


@pytest.mark.integration  # parsing all tests takes two seconds
def test_no_function_of_a_test_is_long() -> None:
    sizes = {
        name: size
        for file_facts in facts("tests").values()
        for name, size in file_facts.functions.items()
    }
    assert {name: size for name, size in sizes.items() if size > MOST_FUNCTION_LINES} == {}


def test_the_medians_stay_small() -> None:
    all_facts = product().values()
    assert (
        median(file_facts.lines for file_facts in all_facts if file_facts.lines > 1) <= MEDIAN_LINES
    )
    sizes = [size for file_facts in all_facts for size in file_facts.functions.values()]
    assert median(sizes) <= MEDIAN_FUNCTION_LINES


def test_no_module_is_a_bag() -> None:
    bags = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [path for path in product() if path.stem in bags]


@pytest.mark.parametrize("package", ["base", "store", "node"])
def test_what_runs_on_hosts_imports_the_standard_library_only(package: str) -> None:
    """Which of ours it may import is a contract of its own."""
    folder, allowed = ROOT / "trainctl" / package, set(sys.stdlib_module_names) | {"trainctl"}
    own = {
        path: file_facts for path, file_facts in product().items() if path.is_relative_to(folder)
    }
    assert own
    assert {
        path: file_facts.imports - allowed
        for path, file_facts in own.items()
        if file_facts.imports - allowed
    } == {}


def test_codes_in_use_are_those_explained() -> None:
    """``trainctl/errors.md`` has a section for each code that the operator's side names, and no other."""
    node = ROOT / "trainctl" / "node"
    used = {
        code
        for path, file_facts in product().items()
        if not path.is_relative_to(node)
        for code in file_facts.codes
    }
    assert len(used) > 100
    assert used == set(explanations())


def test_an_error_without_a_class_of_its_own_names_its_cause() -> None:
    """``TrainctlError`` itself is raised with a code; only a failure of the system has none to give."""
    bare = [place for file_facts in product().values() for place in file_facts.bare]
    assert bare == ["trainctl/cli/invoke.py"]


def test_every_public_method_has_a_docstring_or_implements_one_that_has() -> None:
    methods = [
        (method.name, bool(ast.get_docstring(method)), f"{path.relative_to(ROOT)}:{method.lineno}")
        for path in product()
        for kind in ast.parse(path.read_text()).body
        if isinstance(kind, ast.ClassDef) and not kind.name.startswith("_")
        for method in kind.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
    ]
    described = {name for name, has_docstring, _ in methods if has_docstring}
    assert [place for name, has, place in methods if not has and name not in described] == []


def test_each_mutation_fits_its_file_once_and_has_tests() -> None:
    texts = {path: (ROOT / path).read_text() for path in {fault.path for fault in MUTATIONS}}
    unfit = [fault for fault in MUTATIONS if texts[fault.path].count(fault.old) != 1]
    untested = [name for fault in MUTATIONS for name in fault.tests if not (ROOT / name).exists()]
    assert (unfit, untested) == ([], [])
