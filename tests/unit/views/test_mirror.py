"""What is said of a mirror."""

from __future__ import annotations

import pytest

from trainctl.store.survey import InventoryRow, MirrorInventory
from trainctl.store.verify import Finding, FindingOutcome, VerifyReport
from trainctl.views.mirror import lost_listing_lines, mirror_json, mirror_lines, mirror_verify_lines

SOURCE = "hf://acme/model"


@pytest.mark.parametrize(
    ("outcome", "sources", "verdict"),
    [
        (FindingOutcome.CORRUPT, (SOURCE,), "1 corrupt. Run trainctl mirror verify --repair to delete corrupt blobs."),
        (FindingOutcome.REMOVED, (SOURCE,), "1 removed. The next apply downloads the deleted blobs again."),
        (FindingOutcome.REMOVED, (), "1 removed."),
    ],
)  # fmt: skip
def test_the_verdict_of_a_verification(
    outcome: FindingOutcome, sources: tuple[str, ...], verdict: str
) -> None:
    """Only what a source needs is downloaded again."""
    finding = Finding("blobs/sha256/ab/abc", "changed", 1, sources, outcome)
    lines = mirror_verify_lines(VerifyReport(1, 1, (finding,)))
    assert lines[-1] == f"1 blob verified, 1 B: {verdict}"


MB = 10**6
ROWS = tuple(
    InventoryRow(
        f"hf://some-organization/{name}-instruct-with-a-long-name", "6" * 40, "a" * 64, 12, 10 * MB,
        5 * MB, stored * MB, (10 - stored) * MB, 1_700_000_000.0, ("pretraining", "evaluation"), ("ann@laptop", "bo@desk"),
    )
    for name, stored in (("model", 10), ("copy", 5))
)  # fmt: skip


def test_what_others_wrote_begins_no_line_of_its_own() -> None:
    """A row is a line, whatever stands in a reference of a mirror that many may write to."""
    hostile = ROWS[0]._replace(users=("eve\n::error::stop",), source="hf://eve/\r\n::warning::x")
    lines = mirror_lines(MirrorInventory((hostile,)))
    assert not [line for item in lines for line in item.splitlines() if line.startswith("::")]
    assert "eve\\n::error::stop" in lines[1]


GC = "Run trainctl mirror gc to delete unreferenced blobs."


@pytest.mark.parametrize(
    ("inventory", "summary"),
    [
        (MirrorInventory(ROWS), "15.0 MB stored, 5.0 MB saved by deduplication."),
        (MirrorInventory(ROWS[:1]), "10.0 MB stored."),
        (MirrorInventory(ROWS, 7 * MB), "15.0 MB stored, 5.0 MB saved by deduplication, 7.0 MB of incomplete sources."),
        (MirrorInventory(ROWS[:1], 7 * MB, MB), f"10.0 MB stored, 7.0 MB of incomplete sources, 1.0 MB unreferenced. {GC}"),
        (MirrorInventory(()), "The mirror is empty."),
        (MirrorInventory((), unreferenced=22 * MB), f"0 B stored, 22.0 MB unreferenced. {GC}"),
    ],
)  # fmt: skip
def test_the_last_line_sums_up_the_mirror(inventory: MirrorInventory, summary: str) -> None:
    assert mirror_lines(inventory)[-1] == summary
    document = mirror_json(inventory)
    stored = sum(row.bytes_stored for row in inventory.rows)
    assert document["bytes_stored"] == stored
    assert document["bytes_unfinished"] == inventory.unfinished
    assert document["bytes_unreferenced"] == inventory.unreferenced


def test_a_lost_listing_is_shown_with_a_warning() -> None:
    lost = ROWS[0]._replace(listing_status="corrupt", bytes_shared=0, bytes_stored=0, bytes_saved=0)
    unfinished = lost._replace(listing=None, listing_status="")
    inventory = MirrorInventory((lost, unfinished, ROWS[1]))

    assert "  corrupt  " in mirror_lines(inventory, 120)[1]
    statuses = [row["listing_status"] for row in mirror_json(inventory)["sources"]]
    assert statuses == ["corrupt", "incomplete", "complete"]
    (warning,) = lost_listing_lines(inventory.rows)
    assert f"{lost.source} is corrupt ({lost.listing}): the next apply" in warning
