"""A model from olah, a Hub of other authors, and from the tests' own Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.hub import serve
from tests.support.servers.olah import serve_git
from tests.support.storage.mirrors import (
    assert_sound,
    contents,
    immediate_retry,
    ingest,
    leftovers,
    mirror_at,
)
from tests.support.storage.weights_data import noise
from trainctl.base.listing import Listing
from trainctl.errors import SourceError
from trainctl.sources.hf import HubSource
from trainctl.weights.resolution import SourceRequest, resolve

MODEL = {
    "model.safetensors": noise(500_000),
    "config.json": b'{"hidden_size": 8}',
    "tokenizer/vocab.txt": b"hello\nworld\n",
}


def mirrored(endpoint: str, root: Path) -> tuple[Listing, str]:
    source = HubSource(endpoint)
    request = SourceRequest("hf://acme/small@main", root, ignore=(".gitattributes", ".git*"))
    resolved = resolve(request, retry=immediate_retry(), open_source=lambda scheme: source).resolved
    listing = ingest(mirror_at(root), resolved, source)
    (survey,) = mirror_at(root).survey([resolved]).sources
    assert (survey.here, survey.listing) == (resolved.size, listing.id)
    return listing, resolved.revision


def test_olah_and_our_hub_give_the_same_listing(tmp_path: Path) -> None:
    """A server with git ids and without ranges, and one with LFS hashes, are the same content."""
    for path, data in MODEL.items():
        target = tmp_path / "files" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    with serve_git(tmp_path / "olah", "acme/small", tmp_path / "files") as endpoint:
        foreign, commit = mirrored(endpoint, tmp_path / "a")
        with pytest.raises(SourceError, match="hf://acme/other"):
            HubSource(endpoint).resolve("hf://acme/other", None, None)
    assert len(commit) == 40
    assert contents(mirror_at(tmp_path / "a"), foreign) == MODEL
    with serve() as hub:
        hub.add("acme/small", MODEL)
        own, _ = mirrored(hub.url, tmp_path / "b")
        assert own.id == foreign.id
        hub.seen.clear()
        again, _ = mirrored(hub.url, tmp_path / "a")
        assert again.id == foreign.id
        assert not hub.asked("model.safetensors")
    for root in (tmp_path / "a", tmp_path / "b"):
        assert_sound(root)
        assert leftovers(root) == []
