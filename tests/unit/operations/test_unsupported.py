"""What can't be done is refused when it is planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import desired
from trainctl.operations.survey.checks import unsupported

JOB = "jobs: {sft: {runtime: {start_commands: [true_]}%s}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "jobs: {sft: {runtime: {start_commands: [true_], venv: /v}, image: {base_image: python}}}",
            "runtime.venv and runtime.requirements are only supported without a container",
        ),
        (
            "clusters: {c: {provider: none}}\n" + JOB % "",
            "unknown provider 'none'",
        ),
        (
            "clusters: {c: {provider: local, cache: {cluster: {size: 1TB}}}}\n" + JOB % "",
            "`cache.cluster` has no directory",
        ),
        (
            "weights: {a-b: 'file:./x', a_b: 'file:./y'}\n" + JOB % ", weights: [a-b, a_b]",
            "weights.a-b and weights.a_b would both be TRAINCTL_WEIGHTS_A_B",
        ),
    ],
)
def test_it_is_refused_where_it_stands(tmp_path: Path, text: str, said: str) -> None:
    """Each has one error, with the address or the section, and what to write instead."""
    found = unsupported(desired(tmp_path, text))

    assert [one.summary for one in found] == [said]
    assert found[0].detail


def test_an_image_is_no_hindrance_on_the_host(tmp_path: Path) -> None:
    """runtime.engine: host says that the image is not needed."""
    text = (
        "jobs: {sft: {image: {base_image: python}, runtime: {engine: host, start_commands: [x]}}}\n"
    )

    assert unsupported(desired(tmp_path, text)) == []
