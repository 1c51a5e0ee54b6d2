"""``${{ … }}``: what it refers to, which type it has, what is said where it refers to nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.projects.manifests import attributes, desired, problems
from trainctl.desired.expression import read_variables
from trainctl.manifest.tree import SourceFloat, mapping_node, scalar_node
from trainctl.model.diagnostics import Diagnostic, Position


def job(command: str = "x", rest: str = "") -> str:
    """A manifest with one job and some variables."""
    return (
        "vars: {lr: 1.0e-5, n: 2, on: true, text: a b, quoted: '5'}\n"
        "weights: {w: 'hf://o/name', v.1: {source: 'hf://o/x', mount_location: /m}}\n"
        f"jobs: {{j: {{weights: [w, v.1], runtime: {{start_commands: ['{command}']}}{rest}}}}}"
    )


def test_whole_values_keep_their_type(tmp_path: Path) -> None:
    """A number is a number; inside text, in labels and in the environment it is text."""
    rest = ", compute: {node_count: '${{ var.n }}'}, labels: {a: '${{ var.n }}', b: 'n=${{var.n}}'}"
    found = attributes(desired(tmp_path, job(rest=rest)), "job.j")
    assert found["compute"]["node_count"] == 2
    assert found["labels"] == {"a": "2", "b": "n=2"}


@pytest.mark.parametrize(
    ("command", "expanded"),
    [
        ("${{ var.lr }}", "1.0e-5"),
        ("${{var.on}} ${{ var.n }}", "true 2"),
        ("${{ var.text }}", "'a b'"),
        ("${{ weights.w.path }}/x", "weights/name/x"),
        ("${{ weights.v.1.path }}", "/m"),
        ("${{ job.name }}@${{ project.name }}", "j@here"),
        ("$HOME ${A} ${A[@]}", "$HOME ${A} ${A[@]}"),
    ],
)
def test_what_references_mean(tmp_path: Path, command: str, expanded: str) -> None:
    """In a command, in the words of the shell."""
    directory = tmp_path / "here"
    directory.mkdir()
    found = attributes(desired(directory, job(command)), "job.j")
    assert found["runtime"]["start_commands"] == [expanded]


@pytest.mark.parametrize(
    ("command", "summary", "detail"),
    [
        ("${{ var.lrr }}", "undeclared variable 'lrr'", "Did you mean 'lr'?"),
        ("${{ weights.q.path }}", "undeclared weights 'q'", "Known: "),
        ("${{ weights.w.size }}", "unknown reference 'weights.w.size'", "weights.NAME.path"),
        ("${{ secrets.x }}", "secrets can't be used in expressions", "environment_variables"),
        ("${{ env.HOME }}", "environment variables of the client can't be used", "--var"),
        ("${{ jobs.x }}", "unknown reference 'jobs.x'", "var.NAME"),
        ("${{ }}", "unknown reference ''", "var.NAME"),
        ("${{ var.lr", "without", "Close"),
        ('"${{ var.lr }}"', "inside double quotes", "outside"),
    ],
)
def test_bad_references_are_told(tmp_path: Path, command: str, summary: str, detail: str) -> None:
    """Once, with the address and what to write."""
    (one,) = problems(tmp_path, job(command))
    assert summary in one.summary
    assert detail in one.detail
    assert one.address == "job.j"
    assert one.where is not None
    assert one.where.line == 3


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("vars: {a: '${{ var.b }}', b: 1}", "a variable can't refer to another variable"),
        (
            "clusters: {c: {provider: local, nodes: '${{ job.name }}'}}",
            "job.name is not available here",
        ),
        (
            "projects: {a: {}, b: {}}\nmirror: {url: 'file:///${{ project.name }}'}",
            "project.name is not available",
        ),
        ("project: {name: '${{ project.name }}'}", "project.name is not available here"),
        ("mirror: {url: '${{ weights.a.path }}'}", "paths of weights are only available in jobs"),
        (
            "mirror: {url: '${{ raw(var.a) }}'}\nvars: {a: 'file:///x'}",
            "raw(…) is only supported in start_commands",
        ),
        (
            "jobs: {'${{ var.a }}': {runtime: {start_commands: [x]}}}",
            "an expression can't be a key",
        ),
        (
            "vars: {a: x}\nclusters: {c: {provider: local, nodes: '${{ var.a }}'}}",
            "expected an integer",
        ),
        (
            "weights: {a: 'hf://a/b'}\njobs: {j: {runtime: {start_commands: ['${{ weights.a.path }}']}}}",
            "job.j does not use weights.a",
        ),
    ],
)
def test_expressions_have_their_places(tmp_path: Path, text: str, summary: str) -> None:
    """Where there is no such thing, they say so."""
    found = problems(tmp_path, text)
    assert summary in " | ".join(one.summary for one in found)


def test_expanded_text_is_bounded(tmp_path: Path) -> None:
    """A short manifest can't ask for gigabytes."""
    jobs = "".join(
        f"  j{n}: {{labels: {{a: '{'${{ var.a }}' * 20}'}}, runtime: {{start_commands: [x]}}}}\n"
        for n in range(3)
    )
    found = problems(tmp_path, f"vars: {{a: {'x' * 500_000}}}\njobs:\n{jobs}")
    assert {one.summary for one in found} == {"labels.a: the expanded text is larger than 16 MiB"}


def test_flags_and_files_override(tmp_path: Path) -> None:
    """Files in their order, then flags; each read as an unquoted word, but text stays text."""
    (tmp_path / "a.toml").write_text("lr = 2e-5\nn = 3\n")
    (tmp_path / "b.yaml").write_text("n: 4\nother: 1\n")
    wish = desired(
        tmp_path,
        job("${{ var.lr }} ${{ var.n }} ${{ var.on }} ${{ var.quoted }}"),
        variables={"on": "false", "quoted": "0x10"},
        var_files=[tmp_path / "a.toml", tmp_path / "b.yaml"],
    )
    assert attributes(wish, "job.j")["runtime"]["start_commands"] == ["2e-5 4 false 0x10"]
    assert [one.summary for one in wish.warnings] == ["undeclared variable 'other'"]


def test_the_environment_is_below_files_and_flags(tmp_path: Path) -> None:
    """As in Terraform: what the manifest doesn't declare is ignored."""
    (tmp_path / "a.toml").write_text("lr = 2e-5\n")
    names = ("lr", "n", "on", "quoted", "other")
    wish = desired(
        tmp_path,
        job("${{ var.lr }} ${{ var.n }} ${{ var.on }} ${{ var.quoted }}"),
        environ={f"TRAINCTL_VAR_{name}": "7" for name in names} | {"n": "8"},
        variables={"on": "false"},
        var_files=[tmp_path / "a.toml"],
    )
    assert attributes(wish, "job.j")["runtime"]["start_commands"] == ["2e-5 7 false 7"]
    assert wish.warnings == ()
    environ = {"TRAINCTL_VAR_lr": "hf_abcdefghijklmnopqrstuvwxyz012345"}
    (one,) = problems(tmp_path, job(), environ=environ)
    assert "this looks like a credential" in one.summary
    assert str(one.where) == "TRAINCTL_VAR_lr"


def test_a_variable_from_a_flag_has_the_type_of_its_word(tmp_path: Path) -> None:
    """``--var n=3`` is a number where one is wanted."""
    text = job(rest=", compute: {node_count: '${{ var.n }}'}")
    wish = desired(tmp_path, text, variables={"n": "3"})
    assert attributes(wish, "job.j")["compute"]["node_count"] == 3


@pytest.mark.parametrize(
    ("variables", "summary"),
    [
        ({"lrr": "1"}, "undeclared variable 'lrr'"),
        ({"lr": "hf_abcdefghijklmnopqrstuvwxyz012345"}, "this looks like a credential"),
        ({"lr": ".inf"}, "infinity"),
    ],
)
def test_wrong_flags_are_told(tmp_path: Path, variables: dict[str, str], summary: str) -> None:
    """Without the value where it may be a secret."""
    (one,) = problems(tmp_path, job(), variables=variables)
    assert summary in one.summary
    assert "hf_abc" not in str(one.to_json())
    assert str(one.where) == "--var"


def test_a_variable_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """With its name."""
    (one,) = problems(tmp_path, job(), var_files=[tmp_path / "none.yaml"])
    assert "cannot read" in one.summary
    assert "none.yaml" in str(one.where)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_from_a_flag_is_spelled_as_given(number: float) -> None:
    """What the user typed is what the command gets."""
    here = Position("f", 1, 1)
    section = mapping_node({"x": scalar_node(1.0, here)}, {}, here)
    found: list[Diagnostic] = []
    value = read_variables(
        mapping_node({"vars": section}, {}, here), {"x": repr(number)}, [], found, {}
    )["x"]
    assert isinstance(value, SourceFloat)
    assert (value.text, float(value), found) == (repr(number), number, [])
