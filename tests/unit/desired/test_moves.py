"""``moved``, ``removed`` and ``import`` of a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import desired, problems
from trainctl.model.address import Address

A = Address.parse
JOBS = "jobs: {tune: {runtime: {start_commands: [x]}}}\n"


def test_what_is_moved_removed_and_imported(tmp_path: Path) -> None:
    """A chain of moves leads to its end; destroying is the default; the digest of the manifest has them."""
    text = """\
moved: [{from: job.sft, to: job.mid}, {from: job.mid, to: job.tune}]
removed: [{from: cluster.old, destroy: false}, {from: job.gone}]
import: [{to: job.tune, id: lab/gpu-01/nuui5lk}]
"""
    made = desired(tmp_path, JOBS + text)
    assert made.moves.renamed == {A("job.sft"): A("job.tune"), A("job.mid"): A("job.tune")}
    assert made.moves.removed == {A("cluster.old"): False, A("job.gone"): True}
    assert made.moves.imported == {A("job.tune"): "lab/gpu-01/nuui5lk"}
    assert made.manifest_digest != desired(tmp_path, JOBS).manifest_digest


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("moved: [{from: job.tune, to: job.x}]", "job.tune is declared"),
        ("moved: [{from: job.x, to: cache.tune}]", "can't be moved"),
        ("moved: [{from: cluster.x, to: cluster.y}]", "can't be moved"),
        ("moved: [{from: x, to: job.y}]", "not an address"),
        ("removed: [{from: job.tune}]", "job.tune is declared"),
        ("import: [{to: job.x, id: a/b/c}]", "not a declared job"),
        ("import: [{to: job.tune, id: nuui5lk}]", "not CLUSTER/NODE/RUN"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """With the place of the entry and what is wrong."""
    (problem,) = problems(tmp_path, JOBS + text)
    assert why in problem.summary
    assert problem.where is not None
    assert problem.where.line == 2
