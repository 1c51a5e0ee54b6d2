"""What is said of a mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.views.mirror_care import verified_lines
from trainctl.weights.mirror.verify import Finding, Outcome, Verified

SOURCE = "hf://acme/model"


@pytest.mark.parametrize(
    ("outcome", "sources", "detail", "said"),
    [
        (Outcome.WRONG, (SOURCE,), "", "1 wrong. mirror verify --repair mends what it can."),
        (
            Outcome.WRONG,
            (SOURCE,),
            "nobody answers",
            "1 wrong. What is wrong stays until its source can be asked: run mirror verify --repair again then.",
        ),
        (
            Outcome.REMOVED,
            (SOURCE,),
            "404",
            "1 removed. The next apply asks the sources of what was removed for what they have now.",
        ),
        (Outcome.REMOVED, (), "nobody refers to it", "1 removed."),
    ],
)
def test_the_verdict_of_a_verification_promises_what_can_be_kept(
    outcome: Outcome, sources: tuple[str, ...], detail: str, said: str
) -> None:
    """Whether a repair was tried already, and whether there is anybody who could be asked."""
    finding = Finding(Path("blobs/sha256/ab/abc"), "changed", 1, sources, outcome, detail)

    lines = verified_lines(Verified(1, 1, (finding,)))

    assert lines[-1] == f"1 content verified, 1 B: {said}"
