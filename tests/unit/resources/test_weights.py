"""Weights through their life, from a directory of this machine into a mirror."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.storage.mirrors import mirror_at, stored
from trainctl.apply.step import ApplyStep
from trainctl.errors import StalePlan
from trainctl.jobs.secrets import SecretResolver
from trainctl.ledger.state import RecordedResource
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.redaction import Redactor
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.resources.agents import ProjectContext
from trainctl.resources.weights import WeightsHandler, source_request_of
from trainctl.weights.lock import LockEntry
from trainctl.weights.mirrors import DirectMirror
from trainctl.weights.resolution import resolve

TINY = Address.parse("weights.tiny")
SOURCE = {"source": "file:./tiny", "allow_patterns": None, "ignore_patterns": None, "auth": None}


class Shelf:
    """A source, a mirror and the handler between them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "tiny").mkdir()
        self.write(b"one")
        self.store = mirror_at(directory / "mirror")
        home = ProjectContext(directory, "lineage", "ana@laptop", "demo")
        self.locked: list[tuple[str, bool]] = []
        secrets = SecretResolver({}, directory, {}, Redactor())
        self.handler = WeightsHandler(DirectMirror(self.store), secrets, home, self._lock)

    def _lock(self, entry: LockEntry) -> None:
        whole = any(one.listing for one in self.store.inventory().rows)
        self.locked.append((entry.pin, whole))

    def write(self, data: bytes) -> None:
        """Change the source."""
        (self.directory / "tiny" / "model.bin").write_bytes(data)

    def planned(self) -> dict[str, Any]:
        """The attributes as a plan made now has them."""
        entry = resolve(
            source_request_of(WeightsSpec.from_attributes(SOURCE), self.directory)
        ).entry
        known = {name: getattr(entry, name) for name in ("revision", "pin", "files", "bytes")}
        return {**SOURCE, **known}

    def apply(self, attributes: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
        """Make them so."""
        step = ApplyStep(
            TINY, Action.CREATE, "key", attributes, None, (), more.get("resolved"),
            lambda address: None, lambda phase, done, total: None, lambda address: 0.0,
        )  # fmt: skip
        return self.handler.apply(step)

    def status(self, outputs: Mapping[str, Any]) -> ResourceStatus:
        """Whether what came out is still there."""
        recorded = RecordedResource(TINY, "trainctl", SOURCE, outputs)
        return self.handler.read(recorded, lambda address: None).status


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """A source of one file."""
    return Shelf(tmp_path)


def test_only_what_is_mirrored_is_locked(shelf: Shelf) -> None:
    """When all of it is there; never a version that a refused plan spoke of, and that nobody ever had."""
    planned = shelf.planned()
    shelf.write(b"other")
    with pytest.raises(StalePlan):
        shelf.apply(planned)
    assert shelf.locked == []

    shelf.apply({**shelf.planned(), "pin": None})
    assert shelf.locked == [(shelf.planned()["pin"], True)]


@pytest.mark.parametrize("looked", [True, False])
def test_what_was_planned_is_mirrored(shelf: Shelf, looked: bool) -> None:
    """Whether the plan asked upstream or took the lock's word: it is resolved again where it must be."""
    attributes = shelf.planned()
    found = (
        resolve(source_request_of(WeightsSpec.from_attributes(SOURCE), shelf.directory)).resolved
        if looked
        else None
    )
    outputs = shelf.apply(attributes, resolved=found)
    assert {name: outputs[name] for name in ("revision", "pin", "files", "bytes")} == {
        name: attributes[name] for name in ("revision", "pin", "files", "bytes")
    }
    assert outputs["mirror"] == (shelf.directory / "mirror").as_uri()
    assert shelf.store.load_listing(outputs["listing"]) is not None
    assert shelf.status(outputs) is ResourceStatus.PRESENT


def test_what_the_mirror_lost_is_gone(shelf: Shelf) -> None:
    """And so is what was never mirrored."""
    outputs = shelf.apply(shelf.planned())
    for listing in (shelf.directory / "mirror" / "listings").iterdir():
        listing.unlink()
    assert shelf.status(outputs) is ResourceStatus.MISSING
    assert shelf.status({}) is ResourceStatus.MISSING


def test_deleting_drops_the_reference_only(shelf: Shelf) -> None:
    """The content stays for others; a second time is no error."""
    shelf.apply(shelf.planned())
    assert [row.projects for row in shelf.store.inventory().rows] == [("demo",)]
    step = ApplyStep(
        TINY, Action.DELETE, "key", {}, None, (), None,
        lambda address: None, lambda phase, done, total: None, lambda address: 0.0,
    )  # fmt: skip
    for _ in range(2):
        shelf.handler.delete(step)
    assert [row.projects for row in shelf.store.inventory().rows] in ([], [()])
    assert stored(shelf.directory / "mirror")
