"""Where a bucket is, and who says so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import by_text, cases
from trainctl.buckets.location import parse_bucket_location
from trainctl.errors import SourceError
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources import source_for
from trainctl.sources.bucket import BucketSource

MINE = "http://127.0.0.1:9000"


@pytest.mark.parametrize("case", cases("sources/trusted_endpoints"))
def test_an_endpoint_of_environment_or_platform_is_trusted(case: dict[str, Any]) -> None:
    place = parse_bucket_location(case["url"], None, case.get("environ", {}))
    assert (place.host, place.trusted, place.url) == (case["host"], True, case["url"])


@pytest.mark.parametrize(
    "url", ["s3://bucket", "r2://account.bucket", "gs://bucket", "azure://account/container"]
)
def test_a_server_that_only_the_caller_names_is_not_trusted(url: str) -> None:
    """Unless the environment names the same, with or without a slash at the end."""
    variable = {"gs": "STORAGE_EMULATOR_HOST", "azure": "AZURE_STORAGE_ENDPOINT"}
    name = variable.get(url.partition(":")[0], "AWS_ENDPOINT_URL")
    assert not parse_bucket_location(url, MINE, {}).trusted
    assert not parse_bucket_location(url, MINE, {name: "http://127.0.0.1:9001"}).trusted
    assert parse_bucket_location(url, f"{MINE}/", {name: MINE}).trusted


@pytest.mark.parametrize(("url", "case"), by_text("sources/platform_endpoints"))
def test_the_platforms_own_server_may_be_named(url: str, case: dict[str, str]) -> None:
    """But not if the environment names another, whose credentials it has then."""
    own = case["own"]
    assert parse_bucket_location(url, own, {}).trusted
    assert not parse_bucket_location(url, own, {case["variable"]: MINE}).trusted
    assert not parse_bucket_location(url, own.replace("https://", "https://x."), {}).trusted
    assert not parse_bucket_location(url, own.replace("https", "http"), {}).trusted
    assert not parse_bucket_location(url, own.rstrip("/") + ".evil.example", {}).trusted


def test_an_emulator_of_azure_has_accounts_as_directories() -> None:
    for endpoint in (MINE, f"{MINE}/", f"{MINE}/account1"):
        environ = {"AZURE_STORAGE_ENDPOINT": endpoint}
        location = parse_bucket_location("azure://account1/container", None, environ)
        assert location.endpoint == f"{MINE}/account1"


def test_a_connection_string_names_a_server() -> None:
    """The environment's, as Azure's tools read it, and that of a secret."""
    url = "azure://account1/container"
    environ = {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=a;BlobEndpoint={MINE}/a1;"}
    assert parse_bucket_location(url, None, environ).endpoint == f"{MINE}/a1"

    source = BucketSource("azure", environ={})
    secret = "AccountName=account1;AccountKey=a2V5;BlobEndpoint=https://blobs.example/"
    own = secret.replace("blobs.example", "account1.blob.core.windows.net")
    endpoints = [
        source.custom_endpoint(url, SourceCredential(text, "test")) for text in (secret, own)
    ]
    assert endpoints == ["https://blobs.example", None]


@pytest.mark.parametrize(
    "uri", ["hf://a/b", "s3://box/p", "r2://0ac.box/p", "gs://box/p", "azure://acme/box"]
)
def test_a_source_reports_an_endpoint_of_the_environment(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = uri.partition(":")[0]
    special = {
        "hf": "HF_ENDPOINT",
        "gs": "STORAGE_EMULATOR_HOST",
        "azure": "AZURE_STORAGE_ENDPOINT",
    }
    assert source_for(scheme).custom_endpoint(uri, None) is None
    if scheme != "hf":
        nobody = SourceCredential("", "nobody", "https://elsewhere.example")
        assert source_for(scheme).custom_endpoint(uri, nobody) == nobody.endpoint
    monkeypatch.setenv(special.get(scheme, "AWS_ENDPOINT_URL"), "https://mine.example")
    assert source_for(scheme).custom_endpoint(uri, None) == "https://mine.example"


@pytest.mark.parametrize(
    "endpoint", ["minio:9000", "ftp://x", "http://", "https://u:p@x", "https://x/?a=b"]
)
def test_an_invalid_endpoint_is_an_error_without_its_value(endpoint: str) -> None:
    with pytest.raises(SourceError, match="AWS_ENDPOINT_URL is not the URL") as caught:
        parse_bucket_location("s3://bucket", None, {"AWS_ENDPOINT_URL": endpoint})
    assert "u:p" not in str(caught.value)
