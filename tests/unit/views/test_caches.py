"""A training cache's content in the hosted service's columns."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict

import pytest
from jsonschema import Draft202012Validator

from tests.unit.views.test_json_forms import closed
from trainctl.model.reports import CacheClearResult, CachedFile, CacheUsage
from trainctl.views.caches import (
    MOST_ROWS,
    cache_csv,
    cache_json,
    cache_lines,
    decimal_size,
)
from trainctl.views.terminal.tables import csv_lines
from trainctl_schemas import schema

ENTRIES = (
    CachedFile("hub", 1_520_000_000, 1.7e9, 0o040755),
    CachedFile("hub/model.bin", 1_520_000_000, 1.6e9, 0o100644),
    CachedFile("a,b\n.txt", 0, 1e30, 0o100600),
    CachedFile("link", 0, 1.5e9, 0o120777),
)
CONTENT = CacheUsage(
    "cache.demo-lab", "lab/gpu-0", "/caches/demo", 1.75e9, 3, 1_520_000_000, ENTRIES
)


def order(sort: str, *, descending: bool = False) -> list[str]:
    """The paths in an order."""
    found = cache_json(CONTENT, "abcdefg", sort, descending=descending)
    return [one["path"] for one in found["files"]]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 KB"), (1_520_000, "1.52 MB"), (999_996, "1.00 MB"), (5 * 10**9, "5.00 GB"), (3 * 10**15, "3000.00 TB")],
)  # fmt: skip
def test_sizes_are_decimal_with_two_digits(count: int, text: str) -> None:
    """As the service writes them."""
    assert decimal_size(count) == text


def test_the_csv_has_the_services_header() -> None:
    """Six columns; a path with a comma or a line end stays one cell of one line."""
    lines = list(csv_lines(*cache_csv(CONTENT, "filepath", descending=False)))
    header, *rows = list(csv.reader(lines))

    assert lines[0] == ("File Path,Size (bytes),Size (human readable),Modified,Type,Permissions")
    assert header[0] == "File Path"
    assert rows[0] == ["a,b\\n.txt", "0", "0 B", "", "file", "-rw-------"]
    assert rows[1] == [
        "hub", "1520000000", "1.52 GB", "2023-11-14T22:13:20.000Z", "directory", "drwxr-xr-x"
    ]  # fmt: skip
    assert cache_csv(None, "size", descending=False).count("\n") == 0


def test_the_json_is_the_services_and_published() -> None:
    """Timestamp, project, totals and files; with no cache, totals of nothing; what clear prints, too."""
    found = cache_json(CONTENT, "abcdefg", "size", descending=True)
    nothing = cache_json(None, "abcdefg", "size", descending=True)
    cleared = asdict(CacheClearResult("/caches/demo", 1, 2, 0, dry_run=True))
    published = Draft202012Validator(closed(schema("cache")))

    for value in (found, nothing, cleared):
        assert [one.message for one in published.iter_errors(json.loads(json.dumps(value)))] == []
    assert (found["total_files"], found["total_size_human_readable"]) == (3, "1.52 GB")
    assert (nothing["timestamp"], nothing["files"]) == (None, [])
    assert found["files"][0].keys() == {
        "path", "size_bytes", "size_human_readable", "modified", "type", "permissions"
    }  # fmt: skip


def test_orders() -> None:
    """Each of the service's, in both directions; what is equal is ordered by path."""
    assert order("filepath") == ["a,b\n.txt", "hub", "hub/model.bin", "link"]
    assert order("size", descending=True) == ["hub/model.bin", "hub", "link", "a,b\n.txt"]
    assert order("modified")[0] == "link"
    assert order("type") == ["hub", "a,b\n.txt", "hub/model.bin", "link"]
    assert order("permissions")[0] == "a,b\n.txt"


def test_a_table_of_very_many_ends_with_a_note() -> None:
    """The first ones of the order are shown, and how to get the rest."""
    many = tuple(CachedFile(f"{n:07}", n, 1e9, 0o100644) for n in range(MOST_ROWS + 5))
    content = CacheUsage("cache.demo-lab", "lab/gpu-0", "/caches/demo", 1.75e9, len(many), 9, many)
    lines = cache_lines(content, "abcdefg", "size", descending=True, width=None)

    assert lines[5].startswith(f"{MOST_ROWS + 4:07}")
    assert len(lines) == 5 + MOST_ROWS + 1
    assert lines[-1] == "… and 5 more: use -o csv or -o json to list all."
