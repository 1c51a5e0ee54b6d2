"""91 MB of real weights, resolved and mirrored from two Hubs: olah, which nobody here wrote, and the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.hub import serve
from tests.support.servers.olah import serve_git
from tests.support.storage.minilm import minilm_files
from tests.support.storage.mirrors import (
    assert_sound,
    contents,
    immediate_retry,
    ingest,
    leftovers,
    mirror_at,
)
from tests.support.tiers import one_day_in
from trainctl.base.listing import Listing
from trainctl.errors import SourceError
from trainctl.sources.hf import HubSource
from trainctl.weights.resolution import SourceRequest, resolve

pytestmark = one_day_in(5)

IGNORED = (".gitattributes", ".git*")


def expected(files: Path) -> dict[str, bytes]:
    return {
        path.relative_to(files).as_posix(): path.read_bytes()
        for path in files.rglob("*")
        if path.is_file() and not path.name.startswith(".git")
    }


def mirrored(endpoint: str, root: Path) -> tuple[Listing, str]:
    source = HubSource(endpoint)
    wanted = SourceRequest("hf://acme/minilm@main", root, ignore=IGNORED)
    found = resolve(wanted, retry=immediate_retry(), open_source=lambda scheme: source).resolved
    listing = ingest(mirror_at(root), found, source)
    (known,) = mirror_at(root).survey([found]).sources
    assert (known.here, known.listing) == (found.size, listing.id)
    return listing, found.revision


def test_olah_and_our_hub_give_the_same_listing(tmp_path: Path) -> None:
    """Real weights through a foreign server (git ids, no ranges) and our own (LFS hashes) are the same content."""
    files = minilm_files()
    with serve_git(tmp_path / "olah", "acme/minilm", files) as endpoint:
        foreign, commit = mirrored(endpoint, tmp_path / "a")
    assert len(commit) == 40
    whole = expected(files)
    assert contents(mirror_at(tmp_path / "a"), foreign) == whole
    assert whole["model.safetensors"][8:9] == b"{"
    with serve() as hub:
        hub.add("acme/minilm", dict(whole))
        own, _ = mirrored(hub.url, tmp_path / "b")
        assert own.id == foreign.id
        hub.seen.clear()
        again, _ = mirrored(hub.url, tmp_path / "a")
        assert again.id == foreign.id
        assert not hub.asked("model.safetensors")
    for root in (tmp_path / "a", tmp_path / "b"):
        assert_sound(root)
        assert leftovers(root) == []


def test_olah_does_not_know_another_repository(tmp_path: Path) -> None:
    """What a foreign server answers for an unknown name becomes an error that names the source."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config.json").write_text("{}")
    with (
        serve_git(tmp_path / "olah", "acme/minilm", tmp_path / "files") as endpoint,
        pytest.raises(SourceError, match="hf://acme/other"),
    ):
        HubSource(endpoint).resolve("hf://acme/other", None, None)
