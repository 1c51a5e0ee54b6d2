"""What a mirror on a host is asked and answers, as JSON: the same values on both sides of the connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Sequence

from trainctl.base.listing import ListedFile, ResolvedSource, SourceFile, in_order
from trainctl.weights.mirror.collect import Collected, Removed
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.report import Inventory, MirroredSource

Row = Sequence[Any]


def resolved_to_json(resolved: ResolvedSource) -> dict[str, Any]:
    """A resolved source but for its files, whose rows go beside it; it holds nothing that opens it."""
    return {
        "source": resolved.source,
        "endpoint": resolved.endpoint,
        "revision": resolved.revision,
        "known_as": resolved.known_as,
    }


def file_rows(files: Iterable[SourceFile]) -> Iterator[Row]:
    """Files of a source as rows."""
    return ((file.path, file.size, file.validator, file.checksum) for file in files)


def resolved_from_json(value: Mapping[str, Any], rows: Iterable[Row]) -> ResolvedSource:
    """Read what ``resolved_to_json`` and ``file_rows`` made."""
    files = in_order(SourceFile(*row) for row in rows)
    more = {name: value.get(name) for name in ("known_as", "endpoint")}
    return ResolvedSource(value["source"], value["revision"], files, **more)


def listed_file(path: str, size: int, sha256: str, chunks: Iterable[str]) -> ListedFile:
    """Read a row of a listing."""
    return ListedFile(path, size, sha256, tuple(chunks))


def inventory_from_json(value: Mapping[str, Any]) -> Inventory:
    """Read what ``mirror list`` tells, as ``asdict`` wrote it."""
    rows = tuple(map(_source_from_json, value["rows"]))
    return Inventory(**{**value, "rows": rows, "damaged": tuple(value["damaged"])})


def _source_from_json(value: Mapping[str, Any]) -> MirroredSource:
    lists = {name: tuple(value[name]) for name in ("projects", "people")}
    return MirroredSource(**{**value, **lists})


def collected_to_json(found: Collected) -> dict[str, Any]:
    """What a collection did."""
    needs = {
        name: [_need_to_json(one) for one in getattr(found, name)]
        for name in ("dropped", "kept", "busy")
    }
    return {
        "dry_run": found.dry_run,
        "bytes": found.bytes,
        "blobs": found.blobs,
        "listings": [asdict(one) for one in found.listings],
        **needs,
    }


def collected_from_json(value: Mapping[str, Any]) -> Collected:
    """Read what ``collected_to_json`` wrote."""
    needs = {
        name: tuple(_need_from_json(one) for one in value[name])
        for name in ("dropped", "kept", "busy")
    }
    listings = tuple(Removed(**one) for one in value["listings"])
    return Collected(value["dry_run"], value["bytes"], value["blobs"], listings, **needs)


def _need_to_json(need: Need) -> dict[str, Any]:
    return {**asdict(need), "path": str(need.path)}


def _need_from_json(value: Mapping[str, Any]) -> Need:
    return Need(Path(value["path"]), value["record"], value["touched"], value["last_used"])
