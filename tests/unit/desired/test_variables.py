"""Variables from files, flags and the environment, and limits of expressions."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.projects.manifests import attributes, desired, problems
from trainctl.desired.variables import read_variables
from trainctl.manifest.tree import SourceFloat, mapping_node, scalar_node
from trainctl.model.diagnostics import Diagnostic, Position

MANIFEST = """\
vars: {lr: 1.0e-5, n: 2, on: true, quoted: '5'}
jobs: {j: {runtime: {start_commands: ['${{ var.lr }} ${{ var.n }} ${{ var.on }} ${{ var.quoted }}']}}}
"""
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz012345"


def test_flags_override_files_and_files_the_environment(tmp_path: Path) -> None:
    """Later files override earlier ones; undeclared variables of the environment are ignored."""
    (tmp_path / "a.toml").write_text("lr = 2e-5\nn = 3\n")
    (tmp_path / "b.yaml").write_text("n: 4\nother: 1\n")
    state = desired(
        tmp_path,
        MANIFEST,
        environ={f"TRAINCTL_VAR_{name}": "7" for name in ("lr", "on", "quoted", "more")},
        variables={"on": "false"},
        var_files=[tmp_path / "a.toml", tmp_path / "b.yaml"],
    )
    assert attributes(state, "job.j")["runtime"]["start_commands"] == ["2e-5 4 false 7"]
    assert [warning.summary for warning in state.warnings] == ["undeclared variable 'other'"]


def test_a_credential_is_refused_and_not_shown(tmp_path: Path) -> None:
    for variables, environ, place in (
        ({"lr": TOKEN}, {}, "--var"),
        ({}, {"TRAINCTL_VAR_lr": TOKEN}, "TRAINCTL_VAR_lr"),
    ):
        (problem,) = problems(tmp_path, MANIFEST, variables=variables, environ=environ)
        assert "this looks like a credential" in problem.summary
        assert str(problem.where) == place
        assert TOKEN[:10] not in str(problem.to_json())


def test_a_missing_file_of_variables_is_named(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, MANIFEST, var_files=[tmp_path / "none.yaml"])
    assert "cannot read" in problem.summary
    assert "none.yaml" in str(problem.where)


def test_expanded_text_is_bounded(tmp_path: Path) -> None:
    """A short manifest can't ask for gigabytes."""
    label = "${{ var.a }}" * 40
    job = f"jobs: {{j: {{labels: {{a: '{label}'}}, runtime: {{start_commands: [x]}}}}}}\n"
    (problem,) = problems(tmp_path, f"vars: {{a: {'x' * 500_000}}}\n{job}")
    assert problem.summary == "labels.a: the expanded text is larger than 16 MiB"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_from_a_flag_keeps_its_spelling(number: float) -> None:
    here = Position("f", 1, 1)
    section = mapping_node({"x": scalar_node(1.0, here)}, {}, here)
    diagnostics: list[Diagnostic] = []
    root = mapping_node({"vars": section}, {}, here)
    value = read_variables(root, {"x": repr(number)}, [], diagnostics, {})["x"]
    assert isinstance(value, SourceFloat)
    assert (value.text, float(value), diagnostics) == (repr(number), number, [])
