"""A source is copied into a store on a host by the packed node program there, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.agents import node_at
from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.storage.mirrors import contents, immediate_retry
from tests.support.storage.store_contents import OTHER, REFERENCE
from tests.support.storage.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource
from trainctl.errors import SourceDenied, SourceNotFound
from trainctl.plugin_api.sources import SourceCredential
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory
from trainctl.resources.host_mirror import HostStore
from trainctl.sources.hf import HubSource
from trainctl.store import references
from trainctl.store.objects import DirectoryObjects
from trainctl.store.store import MirrorStore
from trainctl.weights.mirrors import SourceUpstream
from trainctl_local import LocalTransport

LARGE = "model.safetensors"
FILES = {LARGE: noise(CHUNK_BYTES + 500), "config.json": b"{}", "more/tokens": b"tokens"}
TOKEN = "hf_" + "t" * 30


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Large files of a private repository have presigned URLs; small ones are relayed."""
    with serve() as running, serve(running):
        running.token = TOKEN
        running.add("acme/model", FILES, private=True)
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
        assert contents(MirrorStore(self.objects, immediate_retry()), listing) == FILES


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
    assert progress[-1] == (copy.resolved.size, copy.resolved.size, len(FILES))
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
