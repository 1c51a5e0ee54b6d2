"""Short names of the runs of a matrix."""

from __future__ import annotations

import pytest

from trainctl.views.runs.status import run_labels


@pytest.mark.parametrize(
    ("matrices", "labels"),
    [
        ([{"lr": "1", "n": "4"}, {"lr": "2", "n": "4"}], ["lr=1", "lr=2"]),
        ([{"lr": "1"}, {"lr": "2", "n": "4"}], ["lr=1 n=", "lr=2 n=4"]),
        (
            [{"learning_rate": "1", "optimizer": name} for name in ("adamw", "a" * 20)],
            ["adamw", "a" * 20],
        ),
        ([{"data": "x" * 30}, {"data": "y" * 30}], ["run-0", "run-1"]),
        ([{"lr": "1"}, {"lr": "1"}], ["run-0", "run-1"]),
        ([{}], ["run-0"]),
    ],
)
def test_labels(matrices: list[dict[str, str]], labels: list[str]) -> None:
    found = run_labels({f"run-{n}": [*matrix.items()] for n, matrix in enumerate(matrices)})
    assert [*found.values()] == labels
