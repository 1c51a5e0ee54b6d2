"""Which server a source's URI is served by: the platform's own, or one that the environment or a credential names."""

from __future__ import annotations

import pytest

from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources import source_for

URI = "s3://models/llm"
ELSEWHERE = "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("uri", "variable", "custom_endpoint", "own"),
    [
        ("hf://a/b", "HF_ENDPOINT", "https://hub.example", "https://huggingface.co"),
        (URI, "AWS_ENDPOINT_URL", ELSEWHERE, "https://s3.eu-west-1.amazonaws.com"),
        (URI, "AWS_ENDPOINT_URL_S3", ELSEWHERE, "https://s3.amazonaws.com"),
        (URI, "AWS_ENDPOINT_URL", "https://s3.us-gov-west-1.amazonaws.com", "https://s3.dualstack.us-east-1.amazonaws.com"),
        (URI, "AWS_ENDPOINT_URL", "https://x.execute-api.us-east-1.amazonaws.com", "https://s3.us-east-2.amazonaws.com/"),
        ("r2://0ac.models/llm", "AWS_ENDPOINT_URL", "https://1ac.r2.cloudflarestorage.com", "https://0ac.r2.cloudflarestorage.com"),
        ("gs://models/llm", "STORAGE_EMULATOR_HOST", "http://127.0.0.1:9000", "https://storage.googleapis.com"),
        ("azure://acme/models", "AZURE_STORAGE_ENDPOINT", "https://blobs.example", "https://acme.blob.core.windows.net"),
    ],
)  # fmt: skip
def test_the_environment_names_servers(
    monkeypatch: pytest.MonkeyPatch, uri: str, variable: str, custom_endpoint: str, own: str
) -> None:
    """Another than the platform's own counts, and so does one that the manifest names; the platform's own doesn't."""
    source = source_for(uri.partition(":")[0])
    assert source.custom_endpoint(uri, None) is None
    monkeypatch.setenv(variable, custom_endpoint)
    assert source_for(uri.partition(":")[0]).custom_endpoint(uri, None) == custom_endpoint
    monkeypatch.setenv(variable, own)
    source = source_for(uri.partition(":")[0])
    assert source.custom_endpoint(uri, None) is None
    if not uri.startswith("hf:"):
        assert (
            source.custom_endpoint(uri, SourceCredential("", "nobody", custom_endpoint))
            == custom_endpoint
        )


def test_a_connection_string_names_a_server() -> None:
    """As requests go there, whatever else says nothing."""
    text = "AccountName=acme;AccountKey=a2V5;BlobEndpoint=https://blobs.example/"
    source = source_for("azure")

    assert (
        source.custom_endpoint("azure://acme/models", SourceCredential(text, "test"))
        == "https://blobs.example"
    )
    own = text.replace("blobs.example", "acme.blob.core.windows.net")
    assert source.custom_endpoint("azure://acme/models", SourceCredential(own, "test")) is None
