"""Stores of checkpoints: a directory, moto and rclone answer alike; what a bad network and a hostile name do."""

from __future__ import annotations

import datetime
import io
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.network.faulty_proxy import proxy
from tests.support.servers.buckets import PART_BYTES, BucketServer, moto, rclone
from trainctl.base import sigv4
from trainctl.base.checkpoints.s3 import S3CheckpointStore, _uploads, element_text
from trainctl.base.checkpoints.stores import (
    CheckpointStore,
    DirectoryCheckpointStore,
    StoreUnavailable,
    UnstorableFile,
    open_checkpoint_store,
)
from trainctl.base.retry import RetryPolicy
from trainctl.base.throughput import RateLimiter
from trainctl.errors import StorageError, TrainctlError, UnknownOnNode

pytestmark = pytest.mark.integration

RUN = "demo/sft/1-abcdefg"
BIG = os.urandom(12 * 2**20 + 5)


@pytest.fixture(scope="module")
def moto_bucket() -> Iterator[BucketServer]:
    with moto() as server:
        yield server


@pytest.fixture(scope="module")
def rclone_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with rclone(tmp_path_factory.mktemp("s3") / "root") as server:
        yield server


@pytest.fixture(params=["moto", "rclone"])
def bucket(request: pytest.FixtureRequest) -> BucketServer:
    server: BucketServer = request.getfixturevalue(f"{request.param}_bucket")
    return server


@pytest.fixture(params=["directory", "moto", "rclone"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    if request.param == "directory":
        yield DirectoryCheckpointStore(tmp_path / "store")
        return
    server: BucketServer = request.getfixturevalue(f"{request.param}_bucket")
    with closing(server.store(prefix=tmp_path.name)) as opened:
        yield opened


def everything(store: CheckpointStore, key: str, offset: int = 0) -> bytes:
    result = bytearray()
    store.read(key, offset, result.extend)
    return bytes(result)


def test_what_is_put_is_got_listed_and_deleted(store: CheckpointStore) -> None:
    """Small and empty objects, and names that URLs and XML must quote."""
    keys = [f"{RUN}/a", f"{RUN}/b/empty", f"{RUN}/x y+ü'&<.json"]
    for key in keys:
        store.put(key, b"" if key.endswith("empty") else key.encode())
    store.put("demo/sft/10-zzzzzzz/other", b"1")

    assert sorted((item.key, item.size) for item in store.list(f"{RUN}/")) == sorted(
        (key, 0 if key.endswith("empty") else len(key.encode())) for key in keys
    )
    assert store.get(keys[2]) == keys[2].encode()
    assert store.get(f"{RUN}/none") is None
    with pytest.raises(TrainctlError) as caught:
        everything(store, f"{RUN}/none")
    assert type(caught.value) is UnknownOnNode
    for _ in range(2):
        store.delete(keys[0])
    assert store.get(keys[0]) is None
    assert {item.key for item in store.list(f"{RUN}/")} == set(keys[1:])


def test_a_big_file_goes_in_parts_and_comes_from_any_offset(store: CheckpointStore) -> None:
    """12 MiB in parts of 5; nothing unfinished is left."""
    store.put_file(f"{RUN}/big", io.BytesIO(BIG), len(BIG), RateLimiter())

    assert everything(store, f"{RUN}/big") == BIG
    assert everything(store, f"{RUN}/big", 7_000_001) == BIG[7_000_001:]
    assert everything(store, f"{RUN}/big", len(BIG)) == b""
    with pytest.raises(TrainctlError) as caught:  # it became shorter
        store.put_file(f"{RUN}/short", io.BytesIO(BIG[:6_000_000]), len(BIG), RateLimiter())
    assert type(caught.value) is UnstorableFile
    store.abandon(f"{RUN}/")
    assert [item.key for item in store.list("")] == [f"{RUN}/big"]


@pytest.mark.parametrize("key", ["../x", "a/../../x", "a//b", "/x", "a/./b", "a\0b"])
def test_no_key_leaves_a_directory(tmp_path: Path, key: str) -> None:
    store = DirectoryCheckpointStore(tmp_path / "store")
    for call in (lambda: store.put(key, b"x"), lambda: store.get(key), lambda: store.delete(key)):
        with pytest.raises(TrainctlError):
            call()  # type: ignore[no-untyped-call]
    assert list(tmp_path.iterdir()) == []


def test_parts_of_a_killed_upload_are_removed(bucket: BucketServer) -> None:
    """An upload that fails removes its parts itself, one that was killed leaves them to ``abandon``."""
    store = bucket.store(prefix="cut")
    assert isinstance(store, S3CheckpointStore)
    client = store._client
    begun = client.request("POST", "cut/a/killed", [("uploads", "")]).body
    query = [("partNumber", "1"), ("uploadId", element_text(begun, "UploadId"))]
    client.request("PUT", "cut/a/killed", query, BIG[:PART_BYTES])
    with pytest.raises(TrainctlError):
        store.put_file("a/short", io.BytesIO(BIG[:-1]), len(BIG), RateLimiter())

    left = [key for key, _ in _uploads(client, "cut/a/")]
    store.abandon("a/")

    assert left == ["cut/a/killed"]
    assert list(_uploads(client, "cut/a/")) == []
    store.close()


def test_a_presigned_url_needs_nothing_else(bucket: BucketServer) -> None:
    """A plain GET has the bytes; with another signature it has not."""
    store = bucket.store(prefix="signed")
    store.put("a b/ü.bin", b"weights")
    url = store.url("a b/ü.bin", 60)

    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"weights"
    if bucket.directory is not None:  # moto does not look at signatures
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url[:-4] + "0000")
        caught.value.close()
    store.close()


def test_a_wrong_credential_is_refused_at_once(tmp_path: Path) -> None:
    """A person must mend it: it isn't tried again."""
    with rclone(tmp_path / "s3") as bucket, proxy(bucket.endpoint) as between:
        place = {**bucket.place(), "endpoint_url": between.endpoint}
        wrong = json.dumps({**bucket.credential, "aws_secret_access_key": "another"})
        with (
            closing(open_checkpoint_store(place, {"bucket": wrong})) as store,
            pytest.raises(TrainctlError) as caught,
        ):
            store.put("x", b"1")

        assert type(caught.value) is StorageError
        assert "SignatureDoesNotMatch" in caught.value.summary
        assert between.taken == 1


REGION = '{"aws_access_key_id": "AK", "aws_secret_access_key": "s", "aws_region": "evil.example/#"}'


@pytest.mark.parametrize("text", ["", "{}", "[]", "AKID:secret", '{"access_key_id": "x"}', REGION])
def test_a_secret_in_another_form_is_named_without_its_value(text: str) -> None:
    """The message says which keys belong into it."""
    with pytest.raises(TrainctlError) as caught:
        open_checkpoint_store({"url": "s3://models/x", "secret": "bucket"}, {"bucket": text})
    assert "aws_secret_access_key" in caught.value.detail
    assert not text or text not in caught.value.summary + caught.value.detail


@pytest.mark.parametrize("after", [0, 3_000_000])
def test_transfers_whose_connections_are_cut_twice_arrive(
    moto_bucket: BucketServer, after: int
) -> None:
    with proxy(moto_bucket.endpoint) as between:
        place = {**moto_bucket.place(prefix=f"cut{after}"), "endpoint_url": between.endpoint}
        with closing(open_checkpoint_store(place, moto_bucket.secrets)) as store:
            between.cuts, between.after = 2, after
            store.put_file("big", io.BytesIO(BIG), len(BIG), RateLimiter())
            between.cuts = 2
            assert everything(store, "big") == BIG


def test_an_unreachable_store_is_named_and_usable_when_it_is_back(
    moto_bucket: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = RetryPolicy(attempts=5, base=0.001, unanswered=5)
    monkeypatch.setattr("trainctl.base.checkpoints.s3.RETRY", retry)
    with proxy(moto_bucket.endpoint) as between:
        place = {**moto_bucket.place(prefix="gone"), "endpoint_url": between.endpoint}
        with closing(open_checkpoint_store(place, moto_bucket.secrets)) as store:
            between.gone = True
            with pytest.raises(TrainctlError) as caught:
                store.put("x", b"1")
            between.gone = False
            store.put("x", b"2")

            assert type(caught.value) is StoreUnavailable
            assert between.endpoint in caught.value.summary
            assert store.get("x") == b"2"


@pytest.mark.parametrize("token", [None, "session/token=="])
def test_signatures_are_those_of_botocore(
    token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, key, query = "s3.eu-west-1.amazonaws.com", "a b/ü+~'(1).bin", [("uploadId", "a b")]
    target = sigv4.RequestTarget("PUT", host, f"/models/{key}", query)
    credential = sigv4.S3Credential("AKID", "secret", token)
    headers = sigv4.signed_headers(target, credential, "eu-west-1", "ab" * 32, 1_790_000_000.0)
    url = f"https://{host}{sigv4.quote_path(target.path)}?{sigv4.quote_query(query)}"
    request = AWSRequest("PUT", url, headers={"X-Amz-Content-SHA256": "ab" * 32})
    moment = datetime.datetime.fromtimestamp(1_790_000_000, datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: moment, raising=False)
    auth = S3SigV4Auth(Credentials("AKID", "secret", token), "s3", "eu-west-1")
    auth.payload = lambda _: "ab" * 32
    auth.add_auth(request)

    assert headers["authorization"] == request.headers["Authorization"]
