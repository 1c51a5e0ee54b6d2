"""A store on a host: what is done there by verbs gives what it gives here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.node_program.host_agent import HostAgent
from tests.support.storage.mirrors import immediate_retry
from tests.support.storage.store_contents import (
    CHUNK,
    OTHER,
    REFERENCE,
    leave_unfinished,
    publish,
    source_of,
)
from trainctl.base.objects import ObjectStore
from trainctl.errors import UnknownOnNode
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory
from trainctl.resources.agents import Agents
from trainctl.resources.mirror.host_store import HostMirror, HostStore
from trainctl.store import keys
from trainctl.store.backends.directory import DirectoryObjects
from trainctl.store.maintenance.gc import GcOptions, gc
from trainctl.store.maintenance.inventory import stored_bytes, take_inventory
from trainctl.store.maintenance.survey import take_survey
from trainctl.store.maintenance.verify import FindingOutcome, verify_store

FILES = {"large": bytes(range(256)) * 8, "alone": b"x" * 300, "small": b"small"}


@pytest.fixture
def directory(tmp_path: Path) -> ObjectStore:
    return DirectoryObjects(tmp_path / "store")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> HostStore:
    agent = cast(NodeAgent, HostAgent())
    directory = HostDirectory("node://lab/store", str(tmp_path / "store"))
    return HostStore(
        lambda: directory,
        lambda installs: agent,
        replace(immediate_retry(), notify=said.append),
        lambda value: value,
    )


def test_the_inventory_is_that_of_the_directory(store: HostStore, directory: ObjectStore) -> None:
    publish(directory, FILES)
    leave_unfinished(directory, {"other": b"y" * CHUNK}, OTHER, text="memory://other")

    assert store.inventory() == take_inventory(directory)
    assert store.inventory().rows[0].projects == ("demo",)
    assert store.stored_bytes() == stored_bytes(directory) > 0


def test_a_survey_of_a_host_is_that_of_the_directory(
    store: HostStore, directory: ObjectStore
) -> None:
    listing = publish(directory, FILES)
    leave_unfinished(directory, {"other": b"y" * CHUNK}, OTHER, text="memory://other")
    sources = [
        source_of(FILES, "memory://model", "1"),
        source_of({"other": b"y" * CHUNK}, "memory://other", "1"),
        source_of({}, "memory://empty", "1"),
    ]
    found = store.survey(sources, [listing.id, "0" * 64], "")

    here = take_survey(directory, sources, [listing.id, "0" * 64])
    assert replace(found, free=0) == replace(here, free=0)
    assert found.sources[0].listing == listing.id
    assert store.mirrored(sources[0]) == store.load_listing(listing.id) == listing
    assert store.mirrored(sources[1]) is None
    assert store.serving.tls in (True, False)


def test_gc_reports_what_the_host_deleted(store: HostStore, directory: ObjectStore) -> None:
    publish(directory, FILES)
    publish(directory, {"other": b"y" * CHUNK}, OTHER, text="memory://other")
    assert store.drop_reference(OTHER.lineage, OTHER.address)
    assert not store.drop_reference(OTHER.lineage, OTHER.address)

    expected = gc(directory, GcOptions(dry_run=True))
    assert store.gc(GcOptions(dry_run=True)) == expected
    report = store.gc(GcOptions())

    assert (report.bytes, report.listings, report.kept) == (CHUNK, expected.listings, expected.kept)
    assert store.gc(GcOptions()).blobs == 0


def test_verify_reports_findings_and_progress(store: HostStore, directory: ObjectStore) -> None:
    publish(directory, FILES)
    key = next(stat.key for stat in directory.list(keys.BLOBS) if stat.size == 300)
    directory.put(key, b"z" * 300)
    heard: list[tuple[int, int, int]] = []

    assert store.verify(progress=lambda *now: heard.append(now)) == verify_store(directory)
    repaired = store.verify(repair=True)

    assert heard[-1][0] == heard[-1][1] == stored_bytes(directory) + 300
    assert FindingOutcome.REMOVED in {finding.outcome for finding in repaired.findings}
    assert directory.stat(key) is None


def test_a_forgotten_host_has_no_reference() -> None:
    def forgotten() -> Any:
        raise UnknownOnNode("node lab/gpu-0 was forgotten")

    agents = cast(Agents, None)
    mirror = HostMirror(agents, forgotten, immediate_retry(), lambda value: value)
    assert not mirror.store.drop_reference(REFERENCE.lineage, REFERENCE.address)
    with pytest.raises(UnknownOnNode):
        mirror.store.renew(REFERENCE.lineage, REFERENCE.address)
