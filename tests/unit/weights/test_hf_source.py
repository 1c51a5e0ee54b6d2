"""Links to files of the Hub."""

from __future__ import annotations

import pytest

from tests.support.servers.hub import serve
from tests.support.storage.weights_data import noise
from trainctl.errors import SourceDenied
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.hf import HubSource

TOKEN = "hf_" + "t" * 30


def test_only_a_file_in_the_hubs_storage_costs_a_request_for_its_link() -> None:
    """With a token a small file is relayed, which is known beforehand; of a large one the Hub is asked where it lies."""
    with serve() as hub, serve(hub):
        hub.token = TOKEN
        hub.add(
            "acme/tiny", {"model.safetensors": noise(3_000), "config.json": b"{}"}, private=True
        )
        source, credential = HubSource(hub.url), SourceCredential(TOKEN, "test")
        resolved = source.resolve("hf://acme/tiny", None, credential)
        hub.seen.clear()

        small, large = (source.presigned_url(resolved, file, credential) for file in resolved.files)

        assert small is None
        assert large is not None
        assert [one.path.rpartition("/")[2] for one in hub.seen] == ["model.safetensors"]


@pytest.mark.parametrize("expands", [True, False])
def test_the_hub_is_asked_for_the_commit_and_not_for_every_name(expands: bool) -> None:
    """Files come with the tree, page by page; a server that tells their names all the same is understood."""
    with serve() as hub:
        hub.expands = expands
        commit = hub.add("acme/tiny", {"config.json": b"{}", "a.json": b"{}"}, gated=True)
        hub.add("acme/open", {"config.json": b"{}"})
        source = HubSource(hub.url)
        with pytest.raises(SourceDenied, match="gated"):
            source.resolve("hf://acme/tiny", None, None)
        found = source.resolve("hf://acme/tiny", None, SourceCredential(hub.token, "test"))
        assert source.resolve("hf://acme/open", None, None).files

        assert (found.revision, len(found.files)) == (commit, 2)
        assert {one.query for one in hub.asked("/revision/main")} == {"expand=sha&expand=gated"}


@pytest.mark.integration
def test_the_hubs_own_library_asks_the_same_way() -> None:
    """What huggingface_hub asks for with ``expand`` is what we ask for, and it knows both names."""
    from huggingface_hub import HfApi

    with serve() as hub:
        commit = hub.add("acme/tiny", {"config.json": b"{}"})
        info = HfApi(hub.url, token=False).model_info(
            "acme/tiny", revision="main", expand=["sha", "gated"]
        )
        HubSource(hub.url).resolve("hf://acme/tiny", None, None)

        theirs, ours = hub.asked("/revision/main")
        assert (info.sha, info.gated, info.siblings) == (commit, False, None)
        assert theirs.query == ours.query
