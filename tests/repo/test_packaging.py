"""The layout is what pyproject.toml says it is, and nothing stands at the top that was not decided."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import tomli

from tests.support.projects.program import ROOT, files_of_project

SOURCE_ROOTS = ("providers", "state", "schemas")
TOP = {
    "pyproject.toml", "trainctl", "schemas", "providers", "state", "examples", "tests", "docs", "README.md", "LICENSE",
    ".ci", ".gitignore", ".mkdocs.yml", "llms.txt", "CONTRIBUTING.md", "CHANGELOG.md", "findings",
}  # fmt: skip


@cache
def project() -> dict[str, Any]:
    return tomli.loads((ROOT / "pyproject.toml").read_text())


def packages() -> set[str]:
    packages: list[str] = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return set(packages)


def test_every_package_on_disk_is_in_the_wheel() -> None:
    """A package beside the listed ones works in a checkout and is missing from the wheel, so each must be listed."""
    on_disk = {
        str(init.parent.relative_to(ROOT))
        for root in SOURCE_ROOTS
        for init in (ROOT / root).glob("*/__init__.py")
    }
    assert on_disk | {"trainctl"} == packages()


def test_no_package_has_a_generic_name() -> None:
    """What lands in site-packages starts with trainctl; a source root is no package itself."""
    assert all(Path(name).name.startswith("trainctl") for name in packages())
    assert not [root for root in SOURCE_ROOTS if (ROOT / root / "__init__.py").exists()]


def test_import_contracts_know_every_package() -> None:
    """A package that import-linter is not told about is not checked."""
    names = {Path(name).name for name in packages()}
    assert set(project()["tool"]["importlinter"]["root_packages"]) == names


def test_nothing_else_stands_at_the_top() -> None:
    """The top of the tree holds the decided entries only (as git sees it)."""
    assert {path.partition("/")[0] for path in files_of_project()} <= TOP


def test_entry_points_name_listed_packages() -> None:
    groups = project()["project"]["entry-points"]
    targets = {value.partition(":")[0] for group in groups.values() for value in group.values()}
    assert targets <= {Path(name).name for name in packages()}
    assert targets


def test_ci_runs_the_tests_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[0].startswith("#!")
    assert [line for line in lines[1:] if line.strip()] == [
        'cd "$(dirname "$0")/.." && exec tests/run'
    ]
    for name in (".ci/run", "tests/run", "examples/quickstart/run"):
        assert (ROOT / name).stat().st_mode & 0o111, name
