"""Content of a bucket that arrives with the right length and wrong bytes is compared with the platform's digests."""

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

from tests.support.network.faulty_proxy import proxy
from tests.support.servers.buckets import KEY_ID, SECRET, moto
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
from trainctl.base.listing import ResolvedSource
from trainctl.base.protocol.wire import CallbackClient, PendingRequest
from trainctl.buckets.bucket import Bucket as Objects
from trainctl.buckets.credentials import AzureKey, sign_sas_query
from trainctl.buckets.location import parse_bucket_location
from trainctl.errors import SourceMismatch
from trainctl.node.mirror import SourceUrlCache, UrlUpstream
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.bucket import BucketSource
from trainctl.store import file_hash, writers

RIGHT, WRONG = b"<weights as they were put>", b"<weights as they were cut>"
"""The proxy replaces these bytes in every response."""
SMALL = noise(20_000) + RIGHT + noise(10_000, 1)
STREAMED = noise(5 * 2**20) + RIGHT + noise(2**20, 1)
IN_PARTS = noise(50 * 2**20) + RIGHT + noise(16 * 2**20, 1)
CHUNK = 4 * 2**20
Served = Iterator[tuple[BucketSource, str, SourceCredential | None]]
KEYS = SourceCredential(
    json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}), "the test"
)
AZURE = SourceCredential(json.dumps({"account_key": ACCOUNT_KEY}), "the test")


@contextmanager
def on_s3(work: Path, data: bytes, **more: str) -> Served:
    with moto() as server, proxy(server.endpoint, RIGHT, WRONG) as between:
        client: Any = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            config=Config(request_checksum_calculation="when_required"),  # no checksum but the MD5
        )
        client.put_object(Bucket="models", Key="w/model.bin", Body=data, **more)
        yield BucketSource(environ={"AWS_ENDPOINT_URL": between.endpoint}), "s3://models/w", KEYS


@contextmanager
def on_google(work: Path, data: bytes) -> Served:
    with google_xml() as server, proxy(server.url, RIGHT, WRONG) as between:
        place = parse_bucket_location("gs://models/w", None, {"STORAGE_EMULATOR_HOST": server.url})
        Objects(place, environ={}).put("model.bin", data)
        yield (
            BucketSource("gs", environ={"STORAGE_EMULATOR_HOST": between.endpoint}),
            "gs://models/w",
            None,
        )


@contextmanager
def on_azure(work: Path, data: bytes) -> Served:
    with azure(work) as server, proxy(server.endpoint, RIGHT, WRONG) as between:
        uri = f"azure://{ACCOUNT}/closed/w"
        place = parse_bucket_location(uri, server.endpoint, {})
        now = time.time()
        query = sign_sas_query(AzureKey(ACCOUNT_KEY), place, "w/model.bin", "cw", 600, now)
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2021-08-06"}
        url = f"{server.endpoint}/closed/w/model.bin?{query}"
        urllib.request.urlopen(urllib.request.Request(url, data, headers, method="PUT")).close()
        environ = {"AZURE_STORAGE_ENDPOINT": between.endpoint}
        yield BucketSource("azure", read_timeout=20, environ=environ), uri, AZURE


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(SMALL, id="small", marks=pytest.mark.long),
        pytest.param(STREAMED, id="streamed"),
        pytest.param(IN_PARTS, id="parts", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("serve", [on_s3, on_google, on_azure])
def test_wrong_bytes_of_the_right_length_are_refused(
    serve: Any, data: bytes, tmp_path: Path
) -> None:
    """Of small files, of streams and of those that come in parts; nothing is kept."""
    root = tmp_path / "mirror"
    with serve(tmp_path, data) as (source, uri, credential):
        resolved = source.resolve(uri, None, credential)
        with pytest.raises(SourceMismatch, match=r"model\.bin") as caught:
            ingest(mirror_at(root, CHUNK), resolved, source, credential=credential)
    assert "xpected MD5" in str(caught.value)
    assert leftovers(root) == []
    assert not list(root.glob("listings/*"))
    assert_sound(root)


@pytest.mark.parametrize(("algorithm", "name"), [("CRC32", "CRC-32"), ("SHA256", "sha256")])
def test_a_checksum_of_s3_takes_the_place_of_the_md5(
    algorithm: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large objects, by one request for each; then no MD5 is computed."""
    monkeypatch.setattr(writers, "PARALLEL_MIN_BYTES", CHUNK)
    monkeypatch.setattr(file_hash, "_non_security_hash", None)
    mirror, large = mirror_at(tmp_path / "mirror", CHUNK), STREAMED.replace(RIGHT, b"")
    for data in (STREAMED, large):
        with on_s3(tmp_path, data, ChecksumAlgorithm=algorithm) as (source, uri, credential):
            resolved = source.resolve(uri, None, credential)
            if data is STREAMED:
                with pytest.raises(SourceMismatch, match=f"xpected {name}"):
                    ingest(mirror, resolved, source, credential=credential)
                assert leftovers(tmp_path / "mirror") == []
            else:
                listing = ingest(mirror, resolved, source, credential=credential)
                assert contents(mirror, listing) == {"model.bin": large}


def test_the_etag_of_an_encrypted_object_is_not_compared(tmp_path: Path) -> None:
    """It looks like an MD5; the server names the encryption."""
    with on_s3(tmp_path, SMALL, ServerSideEncryption="aws:kms") as (source, uri, credential):
        resolved = source.resolve(uri, None, credential)
        mirror = mirror_at(tmp_path / "mirror", CHUNK)
        listing = ingest(mirror, resolved, source, credential=credential)
    assert contents(mirror, listing) == {"model.bin": SMALL.replace(RIGHT, WRONG)}


class UrlSigner:
    """The operator's side of presigned URLs."""

    def __init__(self, source: BucketSource, resolved: ResolvedSource) -> None:
        self._files = {file.path: file for file in resolved.files}
        self._sign = partial(source.presigned_url, resolved, credential=KEYS)

    def begin(self, question: Mapping[str, Any]) -> PendingRequest:
        pending = PendingRequest()
        urls = [{"url": self._sign(file=self._files[path])} for path in question["paths"]]
        pending.response = {"links": urls}
        return pending

    def wait(self, pending: PendingRequest) -> Mapping[str, Any]:
        assert pending.response is not None
        return pending.response


def test_a_host_that_reads_by_presigned_urls_compares_too(tmp_path: Path) -> None:
    mirror = mirror_at(tmp_path / "mirror", CHUNK)
    with on_s3(tmp_path, SMALL) as (source, uri, _):
        resolved = source.resolve(uri, None, KEYS)
        urls = SourceUrlCache(cast(CallbackClient, UrlSigner(source, resolved)), resolved.files)
        with pytest.raises(SourceMismatch, match="xpected MD5"):
            mirror.ingest(resolved, UrlUpstream(resolved, urls), REFERENCE)
