"""Sweeps: which jobs a matrix makes, and what is said where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import attributes, desired, problems
from trainctl.desired.values import DesiredState
from trainctl.model.address import Kind


def sweep(matrix: str, command: str = "train", rest: str = "") -> str:
    """A manifest with one sweep; the matrix stands in line 3."""
    return (
        "vars: {most: 3}\n"
        "jobs:\n"
        f"  sweep: {{matrix: {matrix},\n"
        f"    runtime: {{start_commands: ['{command}']}}{rest}}}\n"
    )


def keys(wish: DesiredState) -> list[str]:
    """What is in the brackets of the jobs' addresses."""
    return [one.key or "" for one in wish.resources if one.kind is Kind.JOB]


def test_one_job_for_each_combination(tmp_path: Path) -> None:
    """In the order written, and its key has the values as they were written; its text has them by name."""
    text = sweep("{lr: [1e-5, 1.0e-4], seed: [1, '2']}", "t ${{ matrix.lr }} ${{ matrix.seed }}")
    wish = desired(tmp_path, text)

    assert keys(wish) == [
        *("lr=1e-5,seed=1", "lr=1e-5,seed=2"),
        *("lr=1.0e-4,seed=1", "lr=1.0e-4,seed=2"),
    ]
    found = attributes(wish, 'job.sweep["lr=1.0e-4,seed=2"]')
    assert found["runtime"]["start_commands"] == ["t 1.0e-4 2"]
    assert found["matrix"] == [{"name": "lr", "value": "1.0e-4"}, {"name": "seed", "value": "2"}]


def test_yaml_and_toml_make_the_same_jobs(tmp_path: Path) -> None:
    """With the same keys and the same digest."""
    first, second = tmp_path / "one", tmp_path / "two"
    (first / "here").mkdir(parents=True)
    (second / "here").mkdir(parents=True)
    yaml = sweep("{lr: [1e-5, 3], exclude: [{lr: 3}]}", "t ${{ matrix.lr }}")
    toml = (
        "[vars]\nmost = 3\n[jobs.sweep]\nmatrix = {lr = [1e-5, 3], exclude = [{lr = 3}]}\n"
        "runtime = {start_commands = ['t ${{ matrix.lr }}']}\n"
    )

    one = desired(first / "here", yaml)
    other = desired(second / "here", toml, "trainctl.toml")

    assert keys(one) == keys(other) == ["lr=1e-5"]
    assert one.manifest_digest == other.manifest_digest


def test_a_value_keeps_its_type(tmp_path: Path) -> None:
    """Where an expression is the whole value; a matrix may be made of variables."""
    text = sweep("{n: [1, '${{ var.most }}']}", rest=", compute: {node_count: '${{ matrix.n }}'}")
    wish = desired(tmp_path, text)

    assert attributes(wish, 'job.sweep["n=3"]')["compute"]["node_count"] == 3


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ("{a: [1, 2], b: [3, 4], exclude: [{a: 1, b: 3}]}", ["a=1,b=4", "a=2,b=3", "a=2,b=4"]),
        ("{a: [1, 2], b: [3, 4], exclude: [{a: 1}]}", ["a=2,b=3", "a=2,b=4"]),
        ("{a: [1], include: [{a: 5}]}", ["a=1", "a=5"]),
        ("{a: [1, 2], include: [{a: 2, x: 9}, {x: 1}]}", ["a=1,x=1", "a=2,x=1"]),
        ("{a: [1, 2], include: [{x: 1}, {a: 2, x: 9}]}", ["a=1,x=1", "a=2,x=9"]),
        ("{a: [1], exclude: [{a: 1}], include: [{a: 1, x: 2}]}", ["a=1,x=2"]),
        ("{include: [{x: 1}, {x: 2}]}", ["x=1", "x=2"]),
        ("{a: [1], b: [2], include: [{b: 7, a: 6}]}", ["a=1,b=2", "a=6,b=7"]),
        ("{a: [1e-5], include: [{a: 0.00001, x: 3}]}", ["a=1e-5,x=3"]),
        ("{a: [true, 1], exclude: [{a: 1}]}", ["a=true"]),
    ],
)
def test_include_and_exclude(tmp_path: Path, matrix: str, expected: list[str]) -> None:
    """As GitHub Actions has them: exclude first, by part; include adds to what it overwrites no value of, else stands alone."""
    text = sweep(matrix, "t $X", ", labels: {x: '${{ matrix.x }}'}" if "x:" in matrix else "")
    assert keys(desired(tmp_path, text)) == expected


def test_included_values_are_used_and_complete(tmp_path: Path) -> None:
    """A new name that the job doesn't use is a slip; one that some combination lacks would be nothing there, and is told."""
    matrix = (
        "{fruit: [apple, pear], animal: [cat, dog], include: [{color: green}, {color: pink, animal: cat}, "
        "{fruit: apple, shape: circle}, {fruit: banana}, {fruit: banana, animal: cat}]}"
    )
    text = sweep(matrix, "t $X")
    found = problems(tmp_path, text)
    assert [one.summary for one in found] == [
        "matrix.include[0]: the matrix has no list 'color'",
        "matrix.include[1]: the matrix has no list 'color'",
        "matrix.include[2]: the matrix has no list 'shape'",
    ]

    uses = ", labels: {c: '${{ matrix.color }}', s: '${{ matrix.shape }}'}"
    lacking = problems(tmp_path, sweep(matrix, "t $X", uses))

    assert [one.summary for one in lacking] == [
        "labels.c: matrix.color is not set in every combination",
        "labels.s: matrix.shape is not set in every combination",
    ]


@pytest.mark.parametrize(
    ("matrix", "place", "summary"),
    [
        ("{}", "3:19", "matrix is empty"),
        ("{a: []}", "3:23", "matrix.a is empty"),
        ("{a: 1}", "3:23", "matrix.a: expected a list"),
        ("{a: [1, {b: 2}]}", "3:27", "matrix.a[1]: expected text or an integer"),
        ("{a: [1, 1]}", "3:27", "matrix.a lists 1 twice"),
        ("{a: [1, 1.0]}", "3:27", "matrix.a lists 1.0 twice"),
        ("{a: [1, '1']}", "3:19", "matrix: duplicate combination a=1"),
        ("{a: [1], include: [{a: 1}, {a: 2}, {a: 2}]}", "3:19", "duplicate combination a=2"),
        ("{a: [1], include: [{b: 2}]}", "3:42", "the matrix has no list 'b'"),
        ("{a: [1], exclude: [{b: 2}]}", "3:42", "the matrix has no list 'b'"),
        ("{a: [1], exclude: [{a: 1}]}", "3:19", "matrix has no combinations"),
        ("{'a b': [1]}", "3:27", "invalid name 'a b'"),
        ("{a: [b" + "x" * 600 + "]}", "3:19", "too long (603 characters)"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, matrix: str, place: str, summary: str) -> None:
    """Once, with the place, at the job that has the matrix."""
    (one,) = problems(tmp_path, sweep(matrix, "t ${{ matrix.a }}"))

    assert summary in one.summary
    assert f"{one.where.line}:{one.where.column}" == place if one.where else False
    assert one.address == "job.sweep"


def test_a_sweep_has_an_end(tmp_path: Path) -> None:
    """Of combinations, of one matrix and of all, and of what they make together."""
    values = ", ".join(map(str, range(50)))
    (one,) = problems(tmp_path, sweep(f"{{a: [{values}], b: [{values}]}}"))
    assert one.summary == "matrix: too many combinations (2500)"

    many = "jobs:\n" + "".join(
        f"  s{number}: {{matrix: {{a: [{values}]}}, runtime: {{start_commands: [x]}}}}\n"
        for number in range(41)
    )
    (one,) = problems(tmp_path, many)
    assert one.summary == "matrix: the matrices make the manifest too large"
    assert one.address == "job.s40"


def test_what_is_wrong_with_all_jobs_is_told_once(tmp_path: Path) -> None:
    """Of the job that has the matrix; what is wrong with one of them, of that one."""
    (one,) = problems(tmp_path, sweep("{a: [1, 2]}", rest=", compute: {node_count: 0}"))
    assert (one.address, one.summary) == ("job.sweep", "compute.node_count must be at least 1")

    rest = ", compute: {node_count: '${{ matrix.a }}'}"
    (one,) = problems(tmp_path, sweep("{a: [0, 2]}", rest=rest))
    assert one.address == 'job.sweep["a=0"]'


def test_an_exclude_without_effect_is_a_warning(tmp_path: Path) -> None:
    """A variable may have taken the value away."""
    wish = desired(tmp_path, sweep("{a: [1], exclude: [{a: 2}]}"))
    (one,) = wish.warnings
    assert one.summary == "matrix.exclude[0] matches no combination"


def test_brackets_are_no_part_of_a_name(tmp_path: Path) -> None:
    """A name that looks like a job of a matrix is a name as any other."""
    wish = desired(tmp_path, "jobs: {'s[\"a=1\"]': {runtime: {start_commands: [x]}}}")
    assert [str(job.address) for job in wish.jobs()] == ["job.s-a-1"]


def test_matrix_values_exist_in_their_job_only(tmp_path: Path) -> None:
    """Elsewhere the expression is an error."""
    text = "jobs: {a: {runtime: {start_commands: ['${{ matrix.x }}']}}}"
    (one,) = problems(tmp_path, text)
    assert "matrix.x is not available here" in one.summary


def test_sources_in_place_are_shared(tmp_path: Path) -> None:
    """One resource for what is the same in all jobs; for what depends on the matrix one for each value, whatever else varies."""
    rest = ", weights: ['hf://o/base', 'hf://o/${{ matrix.size }}']"
    wish = desired(tmp_path, sweep("{size: [s, m], seed: [1, 2]}", rest=rest))

    sources = {
        str(one): resource.attributes["source"]
        for one, resource in wish.resources.items()
        if one.kind is Kind.WEIGHTS
    }
    assert sources == {
        "weights.sweep-0": "hf://o/base",
        'weights.sweep-1["size=m"]': "hf://o/m",
        'weights.sweep-1["size=s"]': "hf://o/s",
    }
    used = attributes(wish, 'job.sweep["size=s,seed=2"]')["weights"]
    assert [one["address"] for one in used] == ["weights.sweep-0", 'weights.sweep-1["size=s"]']


def test_declared_weights_may_be_chosen_by_the_matrix(tmp_path: Path) -> None:
    """With their path in the command; other sources keep their addresses."""
    text = "weights: {big: 'hf://o/big', small: 'hf://o/small'}\n" + sweep(
        "{base: [big, small]}",
        "t ${{ weights.big.path }}",
        ", weights: ['${{ matrix.base }}', 'hf://o/data']",
    ).replace("weights.big.path", "matrix.base")
    wish = desired(tmp_path, text)

    chosen = [
        [one["address"] for one in attributes(wish, f'job.sweep["base={name}"]')["weights"]]
        for name in ("big", "small")
    ]
    assert chosen == [["weights.big", "weights.sweep-1"], ["weights.small", "weights.sweep-1"]]


def depends(tmp_path: Path, wish: DesiredState, job: str) -> set[str]:
    """The jobs that a job depends on."""
    del tmp_path
    resource = next(one for address, one in wish.resources.items() if str(address) == job)
    return {str(one) for one in resource.depends_on if one.kind is Kind.JOB}


JOBS = """\
jobs:
  prep: {runtime: {start_commands: [x]}}
  sweep: {depends_on: [job.prep], matrix: {a: [1, 2]}, runtime: {start_commands: [x]}}
  best: {depends_on: [job.sweep], runtime: {start_commands: [x]}}
  one: {depends_on: ['job.sweep["a=2"]'], runtime: {start_commands: [x]}}
"""


def test_depends_on_names_jobs(tmp_path: Path) -> None:
    """One, all of a matrix, or one of a matrix."""
    wish = desired(tmp_path, JOBS)

    assert depends(tmp_path, wish, 'job.sweep["a=1"]') == {"job.prep"}
    assert depends(tmp_path, wish, "job.best") == {'job.sweep["a=1"]', 'job.sweep["a=2"]'}
    assert depends(tmp_path, wish, "job.one") == {'job.sweep["a=2"]'}


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("prep", "'prep' is not the address of a job"),
        ("weights.x", "'weights.x' is not the address of a job"),
        ("job.prp", "undeclared job 'prp'"),
        ("'job.sweep[\"a=9\"]'", 'job.sweep["a=9"] not found'),
        ("'job.prep[\"a=9\"]'", 'job.prep["a=9"] not found'),
    ],
)
def test_depends_on_is_checked(tmp_path: Path, name: str, summary: str) -> None:
    """Each with its place."""
    (one,) = problems(tmp_path, JOBS.replace("[job.sweep]", f"[{name}]"))
    assert summary in one.summary
    assert one.where is not None
    assert one.where.line == 4


def test_a_circle_is_told_with_the_way_round(tmp_path: Path) -> None:
    """Once, however many jobs are on it; a job that follows itself is one, too."""
    text = JOBS.replace("prep: {", "prep: {depends_on: [job.best], ")
    (one,) = problems(tmp_path, text)
    assert one.summary == "depends_on has a cycle: job.prep → job.best → job.sweep → job.prep"

    (one,) = problems(tmp_path, JOBS.replace("[job.sweep]", "[job.best]"))
    assert one.summary == "depends_on has a cycle: job.best → job.best"


def test_max_parallel_is_for_sweeps(tmp_path: Path) -> None:
    """A job alone has one run at a time."""
    (one,) = problems(tmp_path, JOBS.replace("prep: {", "prep: {max_parallel: 2, "))
    assert one.summary == "max_parallel can only be used with 'matrix'"
