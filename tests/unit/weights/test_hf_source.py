"""Links to files of the Hub."""

from __future__ import annotations

from tests.support.hub import serve
from tests.support.weights_data import noise
from trainctl.spi.sources import Credential
from trainctl.weights.sources.hf import HubSource

TOKEN = "hf_" + "t" * 30


def test_only_a_file_in_the_hubs_storage_costs_a_request_for_its_link() -> None:
    """With a token a small file is relayed, which is known beforehand; of a large one the Hub is asked where it lies."""
    with serve() as hub, serve(hub):
        hub.token = TOKEN
        hub.add(
            "acme/tiny", {"model.safetensors": noise(3_000), "config.json": b"{}"}, private=True
        )
        source, credential = HubSource(hub.url), Credential(TOKEN, "test")
        resolved = source.resolve("hf://acme/tiny", None, credential)
        hub.seen.clear()

        small, large = (source.link(resolved, file, credential) for file in resolved.files)

        assert small is None
        assert large is not None
        assert [one.path.rpartition("/")[2] for one in hub.seen] == ["model.safetensors"]
