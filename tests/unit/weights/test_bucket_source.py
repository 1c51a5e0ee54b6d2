"""What a bucket source makes of what lies in a bucket: names, markers, digests; with real servers of S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, moto, rclone
from trainctl.errors import SourceMismatch, SourceNotFound
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.bucket import BucketSource

pytestmark = pytest.mark.integration

KEYS = SourceCredential(
    json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}), "secret keys"
)


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    """By moto."""
    with moto() as running:
        yield running


@pytest.fixture
def s3(server: BucketServer) -> Any:
    """A client that nobody here wrote, of an empty bucket."""
    client = boto3.client(
        "s3", endpoint_url=server.endpoint, region_name="us-east-1",
        aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET,
    )  # fmt: skip
    for one in client.list_objects_v2(Bucket="models").get("Contents", []):
        client.delete_object(Bucket="models", Key=one["Key"])
    return client


@pytest.fixture
def source(server: BucketServer) -> BucketSource:
    """The source of that server's buckets."""
    return BucketSource(environ={"AWS_ENDPOINT_URL": server.endpoint})


def put(s3: Any, **objects: bytes) -> None:
    for key, data in objects.items():
        s3.put_object(Bucket="models", Key=key, Body=data)


def paths(source: BucketSource, uri: str) -> list[str]:
    return [file.path for file in source.resolve(uri, None, KEYS).files]


def read(source: BucketSource, uri: str, path: str) -> bytes:
    resolved = source.resolve(uri, None, KEYS)
    (file,) = (one for one in resolved.files if one.path == path)
    with source.open(resolved, file, 0, KEYS) as pieces:
        return b"".join(pieces)


def test_a_prefix_is_a_directory(s3: Any, source: BucketSource) -> None:
    """``s3://bucket/a`` is what lies in ``a/``: nsource what only begins so, nor an object of exactly that name."""
    put(s3, **{"a": b"alone", "a/x": b"1", "a/b/y": b"2", "ab/z": b"3"})
    assert paths(source, "s3://models/a") == ["b/y", "x"]
    assert paths(source, "s3://models/a/") == ["b/y", "x"]
    assert paths(source, "s3://models") == ["a", "a/b/y", "a/x", "ab/z"]


def test_an_object_alone_is_one_file(s3: Any, source: BucketSource) -> None:
    """Where nothing lies in the directory, the object of that name is the source, under its last name, also to another reader."""
    put(s3, **{"dir/model.bin": b"content"})
    uri = "s3://models/dir/model.bin"
    assert paths(source, uri) == ["model.bin"]
    assert read(source, uri, "model.bin") == b"content"
    resolved = source.resolve(uri, None, KEYS)
    other = BucketSource(environ=source._environ)
    with other.open(resolved, resolved.files[0], 3, KEYS) as pieces:
        assert b"".join(pieces) == b"tent"
    with pytest.raises(SourceNotFound, match="no objects found"):
        source.resolve(f"{uri}/", None, KEYS)


def test_markers_of_directories_are_no_files(s3: Any, source: BucketSource) -> None:
    """Empty objects whose names end in a slash are left out; empty objects with other names are files."""
    put(s3, **{"a/": b"", "a/b/": b"", "a/b/x": b"1", "a/c/": b"", "a/empty": b""})
    assert paths(source, "s3://models/a") == ["b/x", "empty"]


def test_many_pages_are_one_source(tmp_path: Path) -> None:
    """More objects than a page holds are all there, once."""
    names = [f"{n:04}" for n in range(1001)]
    with rclone(tmp_path / "rclone") as bucket:
        assert bucket.directory is not None
        (bucket.directory / "many").mkdir()
        for name in names:
            (bucket.directory / "many" / name).write_bytes(b"x")
        source = BucketSource(environ={"AWS_ENDPOINT_URL": bucket.endpoint})
        assert paths(source, "s3://models/many") == names


def test_an_object_that_is_replaced_is_noticed(s3: Any, source: BucketSource) -> None:
    """Content that was replaced after it was resolved is refused, whether it has the same size or another."""
    put(s3, **{"a/x": b"first"})
    resolved = source.resolve("s3://models/a", None, KEYS)
    (file,) = resolved.files
    for data in (b"other", b"longer"):
        put(s3, **{"a/x": data})
        with (
            pytest.raises(
                SourceMismatch, match=r"x has changed since it was resolved \(.* before, .* now\)"
            ),
            source.open(resolved, file, 2, KEYS) as pieces,
        ):
            list(pieces)


def test_a_server_that_ignores_conditions_is_compared(tmp_path: Path) -> None:
    """rclone answers whatever ETag is asked for: another one in its answer is refused, and both are told."""
    with rclone(tmp_path / "rclone") as bucket:
        store = BucketSource(environ={"AWS_ENDPOINT_URL": bucket.endpoint})
        assert bucket.directory is not None
        (bucket.directory / "a").mkdir()
        (bucket.directory / "a" / "x").write_bytes(b"first")
        resolved = store.resolve("s3://models/a", None, KEYS)
        wrong = replace(resolved.files[0], validator='etag:"0123"')
        with (
            pytest.raises(SourceMismatch, match='ETag "0123" before, "'),
            store.open(resolved, wrong, 0, KEYS) as pieces,
        ):
            list(pieces)
