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
from trainctl.errors import LockHeld, UnknownOnNode
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory
from trainctl.resources.agents import Agents
from trainctl.resources.host_mirror import HostMirror, HostStore
from trainctl.store import keys
from trainctl.store.gc import GcOptions, gc
from trainctl.store.lease import hold_exclusive_access
from trainctl.store.objects import DirectoryObjects
from trainctl.store.survey import stored_bytes, take_inventory, take_survey
from trainctl.store.verify import FindingOutcome, verify_store

FILES = {"large": bytes(range(256)) * 8, "alone": b"x" * 300, "small": b"small"}


@pytest.fixture
def directory(tmp_path: Path) -> ObjectStore:
    return DirectoryObjects(tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path) -> HostStore:
    agent = cast(NodeAgent, HostAgent())
    directory = HostDirectory("node://lab/store", str(tmp_path / "store"))
    retry = immediate_retry()
    return HostStore(lambda: directory, lambda installs: agent, retry, lambda value: value)


def test_a_host_reports_what_is_in_its_directory(store: HostStore, directory: ObjectStore) -> None:
    """By inventory and survey as by those of the directory itself."""
    listing = publish(directory, FILES)
    leave_unfinished(directory, {"other": b"y" * CHUNK}, OTHER, text="memory://other")
    sources = [
        source_of(FILES, "memory://model", "1"),
        source_of({"other": b"y" * CHUNK}, "memory://other", "1"),
        source_of({}, "memory://empty", "1"),
    ]
    survey = store.survey(sources, [listing.id, "0" * 64], "")
    expected = take_survey(directory, sources, [listing.id, "0" * 64])

    assert store.inventory() == take_inventory(directory)
    assert store.inventory().rows[0].projects == ("demo",)
    assert store.stored_bytes() == stored_bytes(directory) > 0
    assert replace(survey, free=0) == replace(expected, free=0)
    assert survey.sources[0].listing == listing.id
    assert store.mirrored(sources[0]) == store.load_listing(listing.id) == listing
    assert store.mirrored(sources[1]) is None


def test_a_collection_on_a_host_deletes_what_one_here_would(
    store: HostStore, directory: ObjectStore
) -> None:
    publish(directory, FILES)
    publish(directory, {"other": b"y" * CHUNK}, OTHER, text="memory://other")
    assert store.drop_reference(OTHER.lineage, OTHER.address)
    assert not store.drop_reference(OTHER.lineage, OTHER.address)
    expected = gc(directory, GcOptions(dry_run=True))
    assert store.gc(GcOptions(dry_run=True)) == expected
    report = store.gc(GcOptions())
    assert (report.bytes, report.listings, report.kept) == (CHUNK, expected.listings, expected.kept)
    with hold_exclusive_access(directory), pytest.raises(LockHeld):
        store.gc(GcOptions())


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
