"""Requests that the Hub gets, and which of them have its token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.hub import HttpFault, Hub, SeenRequest, serve
from tests.support.storage.mirrors import contents, ingest, mirror_at
from trainctl.base.listing import ResolvedSource
from trainctl.errors import SourceDenied
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources import hf
from trainctl.sources.hf import HubSource, default_hub_credential

FILES = {"model.safetensors": b"weights", "config.json": b'{"a": 1}'}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


def resolved(hub: Hub, credential: SourceCredential | None = None) -> ResolvedSource:
    return HubSource(hub.url).resolve("hf://acme/model", None, credential)


def with_token(hub: Hub, url: str | None = None) -> list[SeenRequest]:
    """The requests with a token to that address, or to any."""
    requests = [request for request in hub.seen if url in (None, f"http://{request.host}")]
    assert requests
    return [request for request in requests if "Authorization" in request.headers]


@pytest.mark.parametrize("expands", [True, False])
def test_the_hub_is_asked_for_the_commit_and_not_for_every_name(hub: Hub, expands: bool) -> None:
    """Files come with the tree, page by page, from a server that ignores ``expand``, too."""
    hub.expands = expands
    commit = hub.add("acme/model", FILES, gated=True)
    with pytest.raises(SourceDenied, match="gated") as caught:
        resolved(hub)
    assert "licence" in caught.value.detail
    with pytest.raises(SourceDenied, match="gated"):
        resolved(hub, SourceCredential("hf_other", "test"))
    result = resolved(hub, SourceCredential(hub.token, "test"))
    assert (result.revision, len(result.files)) == (commit, 2)
    assert {request.query for request in hub.asked("/revision/main")} == {"expand=sha&expand=gated"}


@pytest.mark.parametrize("case", ["listed", "moved", "ignored", "failing", "many"])
def test_a_locked_commit_is_one_request(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Unless the branch has moved, or the server lists no digests, nothing or too much at once."""
    before = resolved(hub)
    if case == "moved":
        hub.add("acme/model", {"new.bin": b""})
    hub.expands = case != "ignored"
    hub.faults = [HttpFault("status", "/revision/main")] * (case == "failing")
    monkeypatch.setattr(hf, "_MAX_LISTED", 2 if case == "many" else 3)
    hub.seen.clear()
    assert HubSource(hub.url).resolve("hf://acme/model", before.revision, None) == before
    assert len(hub.seen) == {"listed": 1, "failing": 3}.get(case, 2)


def test_no_token_and_one_of_the_environment_need_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert default_hub_credential() is None
    (tmp_path / "token").touch()
    with pytest.raises(ImportError):
        default_hub_credential()
    monkeypatch.setenv("HF_TOKEN", " hf_a\n")
    assert default_hub_credential() == SourceCredential("hf_a", "HF_TOKEN")


@pytest.mark.integration
def test_the_hubs_own_library_agrees_with_the_source(hub: Hub, tmp_path: Path) -> None:
    """It sends the same query, and reads the same files from the tests' server."""
    from huggingface_hub import HfApi

    api = HfApi(hub.url, token=False)
    info = api.model_info("acme/model", revision="main", expand=["sha", "gated"])
    result = resolved(hub)
    assert (result.revision, info.gated, info.siblings) == (info.sha, False, None)
    theirs, ours = hub.asked("/revision/main")
    assert theirs.query == ours.query
    place = Path(api.snapshot_download("acme/model", local_dir=tmp_path))
    assert {file.path: (place / file.path).read_bytes() for file in result.files} == FILES
    hub.buckets = {"acme/data": {"run 1/w.bin": b"1", "run 1/x": b"22", "run 10": b""}}
    hub.page_size = 2
    files = HubSource(hub.url).resolve("hf://buckets/acme/data", None, None).files
    items = api.list_bucket_tree("acme/data", "run 1", recursive=True)
    rows = [(item.path, item.size, f"xet:{item.xet_hash}") for item in items if item.type == "file"]
    assert rows == [(file.path, file.size, file.validator) for file in files]


@pytest.mark.parametrize("status", [400, 404])
def test_a_mirror_stays_the_server_that_was_set(hub: Hub, status: int) -> None:
    """Its links and redirects to the public Hub are asked there; a parameter that it refuses is left out."""
    hub.page_size, hub.links_to, hub.refuses_parameters = 1, "https://huggingface.co", status
    source, credential = HubSource(hub.url), SourceCredential(hub.token, "test")
    result = source.resolve("hf://acme/model", None, credential)
    assert {file.path for file in result.files} == set(FILES)
    moved = {"Location": f"https://hf.co/acme/model/resolve/{result.revision}/model.safetensors"}
    hub.faults = [HttpFault("status", "config.json", status=307, headers=moved)]
    with source.open(result, result.files[1], 0, credential) as body:
        assert b"".join(body) == FILES["model.safetensors"]
    assert len(with_token(hub)) == len(hub.seen)


def test_without_a_credential_no_token_is_sent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the environment has one: the caller decides."""
    monkeypatch.setenv("HF_TOKEN", hub.token)
    resolved(hub)
    assert with_token(hub) == []


def test_the_token_does_not_follow_a_redirect_to_the_storage(hub: Hub, tmp_path: Path) -> None:
    with serve(hub):
        credential = SourceCredential(hub.token, "test")
        result = resolved(hub, credential)
        mirror = mirror_at(tmp_path)
        listing = ingest(mirror, result, HubSource(hub.url), credential=credential)
    assert contents(mirror, listing) == FILES
    assert {item.headers["Authorization"] for item in with_token(hub, hub.url)} == {
        f"Bearer {hub.token}"
    }
    assert with_token(hub, hub.cdn) == []


def test_the_token_does_not_follow_a_page_on_another_host(hub: Hub) -> None:
    hub.page_size = 1
    with serve(hub):
        hub.url, own = str(hub.cdn), hub.url
        source = HubSource(own)
        result = source.resolve("hf://acme/model", None, SourceCredential(hub.token, "test"))
    assert len(result.files) == 2
    assert with_token(hub, hub.cdn) == []
