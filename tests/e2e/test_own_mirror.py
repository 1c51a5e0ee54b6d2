"""A source that holds the mirror, or lies in it, would never come to rest: it is told of at its line, before anything is begun."""

from __future__ import annotations

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

pytestmark = one_day_in(4)

MANIFEST = """\
mirror: {url: "MIRROR"}
weights:
  g:
    source: "SOURCE"
    mount_location: m
"""


def write(project: ProjectHarness, mirror: str, source: str, more: str = "") -> None:
    """A manifest of one source, with a file in every place that it may name."""
    text = MANIFEST.replace("MIRROR", mirror).replace("SOURCE", source) + more
    project.write(
        {"trainctl.yaml": text.replace("TOP", str(project.directory)), "tree/a.bin": "content", "tree/mir/x": "y"}
    )  # fmt: skip


TREE = "file://TOP/tree"


@pytest.mark.parametrize(
    ("mirror", "source", "more", "says"),
    [
        (f"{TREE}/mir", "file:./tree", "", "contains the mirror"),
        (f"{TREE}/mir", "file:./tree/../tree", "    ignore_patterns: ['*.safetensors']\n", "contains the mirror"),
        (f"{TREE}/mir", "file:./tree", "    allow_patterns: ['*.json']\n", "contains the mirror"),
        (TREE, TREE, "", "is inside the mirror"),
        (TREE, "file:./tree/mir", "", "is inside the mirror"),
        (TREE, "file:./tree/mir/x", "", "is inside the mirror"),
        (f"{TREE}/mir", "file:./link", "", "contains the mirror"),
        ("s3://models/a/mir", "s3://models", "", "contains the mirror"),
        ("s3://models/a", "s3://models/a/mir", "", "is inside the mirror"),
        ("s3://models/a", "s3://models/a", "    endpoint_url: https://s3.eu-west-1.amazonaws.com\n", "is inside the mirror"),
    ],
)  # fmt: skip
def test_source_and_mirror_in_each_other_are_an_error(
    fresh: ProjectHarness, mirror: str, source: str, more: str, says: str
) -> None:
    """By whatever name they go."""
    (fresh.directory / "link").symlink_to("tree")
    write(fresh, mirror, source, more)
    told = fresh.run("validate", code=1).stderr

    assert says in told
    assert "mirror-in-source" in told
    assert "trainctl.yaml:3" in told


@pytest.mark.parametrize(
    ("mirror", "source", "more"),
    [
        (f"{TREE}/mir", "file:./tree", "    ignore_patterns: [/mir/]\n"),
        (f"{TREE}/mir", "file:./tree", "    allow_patterns: ['*.bin']\n"),
        (f"{TREE}/mir", "file:./tree/mirror", ""),
        ("s3://models/a", "s3://models/ab", ""),
        ("s3://models/a", "s3://models", "    endpoint_url: https://elsewhere.example\n"),
        ("s3://models/a", "gs://models/a", ""),
    ],
)
def test_what_is_apart_is_nothing(
    fresh: ProjectHarness, mirror: str, source: str, more: str
) -> None:
    """Patterns may see to it, too."""
    write(fresh, mirror, source, more)
    assert fresh.run("validate").returncode == 0


def test_a_plan_tells_of_it_and_destroy_does_not(fresh: ProjectHarness) -> None:
    """What was made so before may go."""
    write(fresh, f"{TREE}/mir", "file:./tree", "    ignore_patterns: [/mir/]\n")
    fresh.run("apply", "--auto-approve")
    again = fresh.run("plan", "--detailed-exitcode").stdout
    write(fresh, f"{TREE}/mir", "file:./tree")
    told = fresh.run("plan", code=1).stderr
    fresh.run("destroy", "--auto-approve")

    assert "No changes" in again
    assert "so that mirroring changes the source" in told
    assert 'Exclude the mirror with ignore_patterns: ["/mir/"]' in told


def test_the_usual_mirror_counts_as_well(fresh: ProjectHarness) -> None:
    """Nobody named it."""
    fresh.write({"trainctl.yaml": f'weights: {{g: {{source: "file://{fresh.mirror.parent}", mount_location: m}}}}\n'})  # fmt: skip
    assert "contains the mirror" in fresh.run("validate", code=1).stderr
