"""Content of a bucket that arrives with the right length and other bytes: it is held against what the platform tells of it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from botocore.config import Config

from tests.support.network.corrupting_proxy import corrupting_proxy
from tests.support.servers.buckets import KEY_ID, SECRET, moto, rclone
from tests.support.servers.clouds import ACCOUNT, ACCOUNT_KEY, azure
from tests.support.servers.google_xml import google_xml
from tests.support.storage.mirrors import (
    REFERENCE,
    assert_sound,
    contents,
    ingest,
    leftovers,
    mirror_at,
)
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in
from trainctl.base.listing import ResolvedSource
from trainctl.base.protocol.callbacks import CallbackClient, PendingRequest
from trainctl.errors import SourceMismatch
from trainctl.node.mirror.url_upstream import SourceUrlCache, UrlUpstream
from trainctl.objects.bucket_client import Bucket as Objects
from trainctl.objects.credentials import AzureKey, sign_sas_query
from trainctl.objects.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential, WeightSource
from trainctl.sources.bucket import BucketSource

RIGHT, WRONG = b"<weights as they were put>", b"<weights as they were cut>"
SMALL = noise(20_000) + RIGHT + noise(10_000, 1)
STREAMED = noise(5 * 2**20) + RIGHT + noise(2**20, 1)
IN_PARTS = noise(50 * 2**20) + RIGHT + noise(16 * 2**20, 1)
CHUNK = 4 * 2**20
KEYS = SourceCredential(
    json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}), "the test"
)
AZURE = SourceCredential(json.dumps({"account_key": ACCOUNT_KEY}), "the test")


def s3_client(endpoint: str, config: Any = None) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        config=config,
    )


def plain_s3_client(endpoint: str) -> Any:
    """As clients were before they sent checksums by themselves."""
    return s3_client(endpoint, Config(request_checksum_calculation="when_required"))


@contextmanager
def on_s3(
    work: Path, data: bytes, **more: str
) -> Iterator[tuple[BucketSource, str, SourceCredential]]:
    with moto() as server, corrupting_proxy(server.endpoint, RIGHT, WRONG) as endpoint:
        client = plain_s3_client(server.endpoint)
        client.put_object(Bucket="models", Key="w/model.bin", Body=data, **more)
        yield BucketSource(environ={"AWS_ENDPOINT_URL": endpoint}), "s3://models/w", KEYS


@contextmanager
def on_rclone(
    work: Path, data: bytes
) -> Iterator[tuple[WeightSource, str, SourceCredential | None]]:
    with (
        rclone(work / "rclone") as server,
        corrupting_proxy(server.endpoint, RIGHT, WRONG) as endpoint,
    ):
        assert server.directory is not None
        (server.directory / "model.bin").write_bytes(data)
        yield BucketSource(environ={"AWS_ENDPOINT_URL": endpoint}), "s3://models/model.bin", KEYS


@contextmanager
def on_google(
    work: Path, data: bytes
) -> Iterator[tuple[WeightSource, str, SourceCredential | None]]:
    with google_xml() as server, corrupting_proxy(server.url, RIGHT, WRONG) as endpoint:
        place = parse_bucket_location("gs://models/w", None, {"STORAGE_EMULATOR_HOST": server.url})
        Objects(place, environ={}).put("model.bin", data)
        yield BucketSource("gs", environ={"STORAGE_EMULATOR_HOST": endpoint}), "gs://models/w", None


@contextmanager
def on_azure(
    work: Path, data: bytes, name: str = "w"
) -> Iterator[tuple[WeightSource, str, SourceCredential | None]]:
    with azure(work) as server, corrupting_proxy(server.endpoint, RIGHT, WRONG) as endpoint:
        uri = f"azure://{ACCOUNT}/closed/w"
        query = sign_sas_query(
            AzureKey(ACCOUNT_KEY),
            parse_bucket_location(uri, server.endpoint, {}),
            "w/model.bin",
            "cw",
            600,
            time.time(),
        )
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2021-08-06"}
        url = f"{server.endpoint}/closed/w/model.bin?{query}"
        urllib.request.urlopen(urllib.request.Request(url, data, headers, method="PUT")).close()
        yield (
            BucketSource("azure", read_timeout=20, environ={"AZURE_STORAGE_ENDPOINT": endpoint}),
            f"azure://{ACCOUNT}/closed/{name}",
            AZURE,
        )


@contextmanager
def on_azure_alone(
    work: Path, data: bytes
) -> Iterator[tuple[WeightSource, str, SourceCredential | None]]:
    with on_azure(work, data, "w/model.bin") as found:
        yield found


@one_day_in(5)
@pytest.mark.parametrize("data", [SMALL, STREAMED, IN_PARTS], ids=["small", "streamed", "parts"])
@pytest.mark.parametrize("served", [on_s3, on_rclone, on_google, on_azure, on_azure_alone])
def test_other_bytes_of_the_right_length_are_refused(
    served: Any, data: bytes, tmp_path: Path
) -> None:
    """What the platform tells is compared, of small files, of streams and of those that come in parts; nothing is kept."""
    root = tmp_path / "mirror"
    with served(tmp_path, data) as (source, uri, credential):
        resolved = source.resolve(uri, None, credential)
        with pytest.raises(SourceMismatch, match=r"model\.bin") as caught:
            ingest(mirror_at(root, CHUNK), resolved, source, credential=credential)
    assert "xpected MD5" in str(caught.value)
    assert leftovers(root) == []
    assert not list(root.glob("listings/*"))
    assert_sound(root)


def test_a_tag_that_is_no_digest_stops_nobody(tmp_path: Path) -> None:
    """Of what S3 encrypts by a key of its user's the ETag looks like an MD5 and is none: the server says by what it is encrypted."""
    with on_s3(tmp_path, SMALL, ServerSideEncryption="aws:kms") as (source, uri, credential):
        resolved = source.resolve(uri, None, credential)
        mirror = mirror_at(tmp_path / "mirror", CHUNK)
        listing = ingest(mirror, resolved, source, credential=credential)
    assert contents(mirror, listing) == {"model.bin": SMALL.replace(RIGHT, WRONG)}


class Signing:
    """What a host asks for links."""

    def __init__(self, source: BucketSource, resolved: ResolvedSource) -> None:
        self._files = {file.path: file for file in resolved.files}
        self._link = partial(source.presigned_url, resolved, credential=KEYS)

    def begin(self, question: Mapping[str, Any]) -> PendingRequest:
        asked = PendingRequest()
        links = [{"url": self._link(file=self._files[path])} for path in question["paths"]]
        asked.response = {"links": links}
        return asked

    def wait(self, asked: PendingRequest) -> Mapping[str, Any]:
        assert asked.response is not None
        return asked.response


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_host_that_reads_by_links_compares_it_too(tmp_path: Path, encrypted: bool) -> None:
    """Responses to a link say whether the tag is a digest."""
    more = {"ServerSideEncryption": "aws:kms"} if encrypted else {}
    mirror = mirror_at(tmp_path / "mirror", CHUNK)
    with on_s3(tmp_path, SMALL, **more) as (source, uri, _):
        resolved = source.resolve(uri, None, KEYS)
        links = SourceUrlCache(cast(CallbackClient, Signing(source, resolved)), resolved.files)
        upstream = UrlUpstream(resolved, links)
        if encrypted:
            listing = mirror.ingest(resolved, upstream, REFERENCE)
            assert contents(mirror, listing) == {"model.bin": SMALL.replace(RIGHT, WRONG)}
        else:
            with pytest.raises(SourceMismatch, match="xpected MD5"):
                mirror.ingest(resolved, upstream, REFERENCE)
