"""A mirror on a host: maintenance, ingest in a process of the node program, and presigned URLs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.node_program.agents import node_at
from tests.support.node_program.host_agent import HostAgent
from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.storage.mirrors import contents, immediate_retry
from tests.support.storage.store_contents import (
    CHUNK,
    OTHER,
    REFERENCE,
    leave_unfinished,
    publish,
    source_of,
)
from tests.support.storage.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.errors import LockHeld, SourceDenied, SourceError, SourceNotFound, UnknownOnNode
from trainctl.plugin_api.sources import SourceCredential
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory
from trainctl.resources.agents import Agents
from trainctl.resources.host_mirror import HostMirror, HostStore, SourceUrlProvider
from trainctl.sources.hf import HubSource
from trainctl.store import keys, references
from trainctl.store.gc import GcOptions, gc
from trainctl.store.lease import hold_exclusive_access
from trainctl.store.objects import DirectoryObjects
from trainctl.store.store import MirrorStore
from trainctl.store.survey import stored_bytes, take_inventory, take_survey
from trainctl.store.verify import FindingOutcome, verify_store
from trainctl.weights.mirrors import SourceUpstream
from trainctl_local import LocalTransport

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


LARGE = "model.safetensors"


HUB_FILES = {LARGE: noise(CHUNK_BYTES + 500), "config.json": b"{}", "more/tokens": b"tokens"}


TOKEN = "hf_" + "t" * 30


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Large files of a private repository have presigned URLs; small ones are relayed."""
    with serve() as running, serve(running):
        running.token = TOKEN
        running.add("acme/model", HUB_FILES, private=True)
        yield running


class Copy:
    """A store on a host, and the masked values."""

    def __init__(self, place: Path, hub: Hub) -> None:
        self.masked: list[str] = []
        credential = SourceCredential(TOKEN, "the test")
        source = HubSource(hub.url)
        self.resolved: ResolvedSource = source.resolve("hf://acme/model", None, credential)
        self.presigned_path = f"/cdn/models/acme/model/{self.resolved.revision}/{LARGE}"
        self.upstream = SourceUpstream(source, self.resolved, credential)
        agent = self.agent = NodeAgent(node_at(place), LocalTransport())
        directory = HostDirectory("node://lab/store", str(place / "store"))
        self.store = HostStore(
            lambda: directory, lambda installs: agent, immediate_retry(), self._mask
        )
        self.objects = DirectoryObjects(place / "store")

    def _mask(self, value: str) -> str:
        self.masked.append(value)
        return value

    def assert_complete(self) -> None:
        listing = self.store.mirrored(self.resolved)
        assert listing is not None
        assert contents(MirrorStore(self.objects, immediate_retry()), listing) == HUB_FILES


@pytest.fixture
def copy(tmp_path: Path, hub: Hub) -> Iterator[Copy]:
    copy = Copy(tmp_path, hub)
    yield copy
    copy.agent.end()


def test_a_host_downloads_by_presigned_urls_and_gets_other_files_relayed(
    copy: Copy, hub: Hub
) -> None:
    """Without the token, and only once."""
    progress = [(0, 0, 0)]
    listing = copy.store.ingest(
        copy.resolved, copy.upstream, REFERENCE, progress=lambda *row: progress.append(row)
    )

    copy.assert_complete()
    assert progress[-1] == (copy.resolved.size, copy.resolved.size, len(HUB_FILES))
    downloads = [seen for seen in hub.asked(LARGE) if seen.path.startswith("/cdn/")]
    assert ["Authorization" in seen.headers for seen in downloads] == [False]
    (stored,) = references.read_references(copy.objects).stored
    assert (stored.listing, stored.record["owner"]) == (listing.id, REFERENCE.owner)
    assert copy.masked
    assert TOKEN not in copy.masked
    hub.seen.clear()
    copy.store.ingest(copy.resolved, copy.upstream, OTHER)
    assert [
        seen.path for seen in hub.seen if "/resolve/" in seen.path or "/cdn/" in seen.path
    ] == []


def test_an_expired_presigned_url_is_replaced_and_the_download_resumed(
    copy: Copy, hub: Hub
) -> None:
    path = copy.presigned_path
    hub.faults += [HttpFault("cut", path, at=9000), HttpFault("status", path, status=403)]
    copy.store.ingest(copy.resolved, copy.upstream, REFERENCE)

    copy.assert_complete()
    ranges = [
        seen.headers.get("Range") for seen in hub.asked(LARGE) if seen.path.startswith("/cdn/")
    ]
    assert ranges == [None, "bytes=9000-", "bytes=9000-"]


def test_a_refused_presigned_url_is_the_error(copy: Copy, hub: Hub) -> None:
    hub.faults.append(HttpFault("status", copy.presigned_path, times=99, status=403))
    with pytest.raises(SourceDenied, match="presigned URL denied"):
        copy.store.ingest(copy.resolved, copy.upstream, REFERENCE)


def test_an_error_of_a_relayed_file_is_that_of_its_source(copy: Copy, hub: Hub) -> None:
    hub.faults.append(HttpFault("status", "/config.json", times=99, status=404))
    with pytest.raises(SourceNotFound, match=r"config\.json"):
        copy.store.ingest(copy.resolved, copy.upstream, REFERENCE)


SOURCE_FILES = {"small": b"bytes of a small file", "signed": b"x"}


SOURCE = ResolvedSource(
    "hf://acme/model", "1", tuple(SourceFile(path, len(SOURCE_FILES[path]), "git:1") for path in sorted(SOURCE_FILES))
)  # fmt: skip


class _Upstream:
    def open(self, file: SourceFile, offset: int) -> AbstractContextManager[Iterator[bytes]]:
        return nullcontext(iter([SOURCE_FILES[file.path][offset:]]))


class _Linking(_Upstream):
    def presigned_url(self, file: SourceFile) -> str | None:
        return "https://storage.example/x?signature=s3cr3t" if file.path == "signed" else None


class _Agent:
    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        yield port


@pytest.fixture
def masked() -> list[str]:
    return []


def links(upstream: Any, masked: list[str], *paths: str, method: str = "links") -> Any:
    """Links that stay open as long as the generator isn't closed."""

    def register(value: str) -> str:
        masked.append(value)
        return value

    agent, retry = cast(NodeAgent, _Agent()), immediate_retry()
    with SourceUrlProvider(SOURCE, upstream, agent, register, retry, threading.Event()) as provider:
        yield provider.response({"method": method, "paths": list(paths)})["links"]


def test_a_presigned_url_is_masked(masked: list[str]) -> None:
    (link,) = links(_Linking(), masked, "signed")
    assert link == [{"url": "https://storage.example/x?signature=s3cr3t"}]
    assert masked == ["signature=s3cr3t"]


@pytest.mark.parametrize("upstream", [_Linking(), _Upstream()], ids=["linking", "plain"])
def test_a_file_without_a_presigned_url_is_relayed_with_a_token(
    upstream: Any, masked: list[str]
) -> None:
    for (link,) in links(upstream, masked, "small"):
        assert link["relayed"]
        assert masked == [link["token"]]
        authorization = {"Authorization": f"Bearer {link['token']}"}
        with urlopen(Request(link["url"], headers=authorization)) as response:
            assert response.read() == SOURCE_FILES["small"]
        with pytest.raises(HTTPError, match="403"):
            urlopen(link["url"])


@pytest.mark.parametrize(
    ("method", "path"),
    [("links", "/etc/passwd"), ("links", "zzz"), ("links", ""), ("origin", "small")],
)
def test_a_host_gets_files_of_the_source_only(masked: list[str], method: str, path: str) -> None:
    with pytest.raises(SourceError, match="host"):
        next(links(_Linking(), masked, "small", path, method=method))
    assert masked == []
