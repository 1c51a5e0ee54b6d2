"""What is said of a mirror."""

from __future__ import annotations

import pytest

from trainctl.store.maintenance.gc import GcReport
from trainctl.store.maintenance.inventory import InventoryRow, MirrorInventory
from trainctl.store.maintenance.verify import Finding, FindingOutcome, VerifyReport
from trainctl.store.references import StoredReference
from trainctl.views.mirror import (
    gc_lines,
    lost_listing_lines,
    mirror_json,
    mirror_lines,
    mirror_verify_lines,
)

SOURCE = "hf://acme/model"


@pytest.mark.parametrize(
    ("outcome", "sources", "said"),
    [
        (
            FindingOutcome.CORRUPT,
            (SOURCE,),
            "1 corrupt. Run trainctl mirror verify --repair to delete corrupt blobs.",
        ),
        (
            FindingOutcome.REMOVED,
            (SOURCE,),
            "1 removed. The next apply downloads the deleted blobs again.",
        ),
        (FindingOutcome.REMOVED, (), "1 removed."),
    ],
)
def test_the_verdict_of_a_verification_promises_what_can_be_kept(
    outcome: FindingOutcome, sources: tuple[str, ...], said: str
) -> None:
    """Only what a source needs is fetched again."""
    finding = Finding("blobs/sha256/ab/abc", "changed", 1, sources, outcome)

    lines = mirror_verify_lines(VerifyReport(1, 1, (finding,)))

    assert lines[-1] == f"1 blob verified, 1 B: {said}"


def test_of_very_many_findings_a_thousand_are_shown() -> None:
    """The verdict counts all of them, and who wants them all is told how."""
    one = Finding("blobs/sha256/ab/abc", "changed", 1, (SOURCE,), FindingOutcome.CORRUPT)

    whole = mirror_verify_lines(VerifyReport(1, 1, (one,) * 1000))
    lines = mirror_verify_lines(VerifyReport(1, 1, (one,) * 1003))

    assert lines[:1001] == whole[:1001]
    assert len(whole) == 1 + 1000 + 2
    assert lines[1001:-1] == ["and 3 more; use --format json or csv to list all.", ""]
    assert "1003 corrupt." in lines[-1]


MB = 10**6
ROWS = tuple(
    InventoryRow(
        f"hf://some-organization/{name}-instruct-with-a-long-name", "6" * 40, "a" * 64, 12, 10 * MB,
        5 * MB, stored * MB, (10 - stored) * MB, 1_700_000_000.0, ("pretraining", "evaluation"), ("ann@laptop", "bo@desk"),
    )
    for name, stored in (("model", 10), ("copy", 5))
)  # fmt: skip


@pytest.mark.parametrize(
    ("width", "last"),
    [
        (None, "PEOPLE"),
        (200, "PEOPLE"),
        (120, "PEOPLE"),
        (100, "PROJECTS"),
        (90, "LAST USED (UTC)"),
        (80, "SHARED"),
    ],
)
def test_a_listing_fits_and_tells_sources_apart(width: int | None, last: str) -> None:
    """What is less important goes where it is narrow, and no row is broken."""
    lines = mirror_lines(MirrorInventory(ROWS), width)

    assert lines[0].rstrip().endswith(last)
    assert max(map(len, lines)) <= (width or 1000)
    assert all("hf://some-" in line for line in lines[1:3])
    assert all(name in line for name, line in zip(("model", "copy"), lines[1:3], strict=True)) is (
        width in (None, 200)
    )


def test_what_others_wrote_begins_no_line_of_its_own() -> None:
    """A row is a line, whatever stands in a reference of a mirror that many may write to."""
    hostile = ROWS[0]._replace(users=("eve\n::error::stop",), source="hf://eve/\r\n::warning::x")
    lines = mirror_lines(MirrorInventory((hostile,)))
    assert not [line for one in lines for line in one.splitlines() if line.startswith("::")]
    assert "eve\\n::error::stop" in lines[1]


def test_what_sharing_saves_is_said_once() -> None:
    """And not at all where nothing is shared, as it would be nothing."""
    form = mirror_json(MirrorInventory(ROWS))

    assert mirror_lines(MirrorInventory(ROWS))[-2:] == [
        "",
        "15.0 MB stored, 5.0 MB saved by deduplication.",
    ]
    assert mirror_lines(MirrorInventory(ROWS[:1]))[-1] == "10.0 MB stored."
    assert mirror_lines(MirrorInventory(ROWS, 7_000_000))[-1] == (
        "15.0 MB stored, 5.0 MB saved by deduplication, 7.0 MB of incomplete sources."
    )
    assert mirror_json(MirrorInventory(ROWS, 7_000_000))["bytes_unfinished"] == 7_000_000
    assert (form["bytes_stored"], form["bytes_saved"]) == (15 * MB, 5 * MB)
    assert sum(row["bytes_stored"] for row in form["sources"]) == 15 * MB


@pytest.mark.parametrize("width", [None, 120, 80])
def test_sources_of_two_servers_are_told_apart(width: int | None) -> None:
    """Where a URI stands twice each says which server's it is; what stands once says nothing of servers in text."""
    twice = tuple(
        ROWS[0]._replace(endpoint=one)
        for one in (None, "http://minio.lab:9000", "https://b.example")
    )
    alone = ROWS[1]._replace(source="s3://alone", endpoint="http://minio.lab:9000")

    header, own, minio, other, last, *_ = mirror_lines(MirrorInventory((*twice, alone)), width)

    assert header.split()[1] == "SERVER"
    assert "  its own  " in own
    assert "  http://minio.lab:9000  " in minio
    assert max(map(len, (header, own, minio, other, last))) <= (width or 1000)
    assert "  b.example  " in other
    assert "minio" not in last
    assert "SERVER" not in mirror_lines(MirrorInventory((twice[1], alone)), width)[0]
    assert [one["endpoint"] for one in mirror_json(MirrorInventory(twice))["sources"]] == [
        None,
        "http://minio.lab:9000",
        "https://b.example",
    ]


def test_what_never_came_is_told_apart() -> None:
    """A source that was asked for and isn't all there has a size that it would have."""
    coming = ROWS[0]._replace(listing=None, bytes_shared=0, bytes_stored=0, bytes_saved=0)

    _, line, *_ = mirror_lines(MirrorInventory((coming,)), 120)
    assert "incomplete" in line
    assert "incomplete" not in "".join(mirror_lines(MirrorInventory(ROWS), 120))


@pytest.mark.parametrize(("width", "last"), [(120, "(UTC)"), (80, "(UTC)"), (60, "PROJECT")])
def test_what_is_kept_is_told_by_its_source_and_project(width: int, last: str) -> None:
    """Whose it is and since when gives way, before a source is too short to be known."""
    source = "hf://some-organization/model-instruct-with-a-long-name@main"
    record = {
        "source": source, "revision": "6" * 40, "bytes": 21_000_000, "project": "pretraining", "owner": "ann@laptop",
    }  # fmt: skip
    kept = StoredReference("references/x", record, 1_700_000_000.0)

    header, row, *_ = gc_lines(GcReport(dry_run=False, kept=(kept,)), width)

    assert max(len(header), len(row)) <= width
    assert header.split()[-1] == last
    assert len(row.split()[0]) >= 32
    assert "21.0 MB  pretraining" in row


def test_a_row_whose_listing_is_lost_says_so() -> None:
    """And in which state each is; a warning tells what to do."""
    lost = ROWS[0]._replace(listing_status="corrupt", bytes_shared=0, bytes_stored=0, bytes_saved=0)
    coming = lost._replace(listing=None, listing_status="")
    found = MirrorInventory((lost, coming, ROWS[1]))

    _, line, _, other, *_ = mirror_lines(found, 120)
    assert "  corrupt  " in line
    assert "  5.0 MB  " in other
    rows = mirror_json(found)["sources"]
    assert [row["listing_status"] for row in rows] == ["corrupt", "incomplete", "complete"]
    (warning,) = lost_listing_lines(found.rows)
    assert f"{lost.source} is corrupt ({lost.listing}): the next apply" in warning


def test_a_mirror_is_empty_if_nothing_lies_there() -> None:
    """What nothing refers to is told, and what deletes it; programs are told, too."""
    left = MirrorInventory((), unreferenced=22 * MB)

    assert mirror_lines(MirrorInventory(())) == ["The mirror is empty."]
    assert mirror_lines(left) == [
        "0 B stored, 22.0 MB unreferenced. Run trainctl mirror gc to delete unreferenced blobs."
    ]
    assert mirror_lines(MirrorInventory((), 7 * MB)) == [
        "0 B stored, 7.0 MB of incomplete sources."
    ]
    assert mirror_lines(MirrorInventory(ROWS[:1], 7 * MB, MB))[-1] == (
        "10.0 MB stored, 7.0 MB of incomplete sources, 1.0 MB unreferenced. Run trainctl mirror gc to delete unreferenced blobs."
    )
    assert mirror_json(left)["bytes_unreferenced"] == 22 * MB
