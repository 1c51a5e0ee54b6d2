"""What a bucket source makes of what lies in a bucket: names, markers, digests; with real servers of S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, moto, rclone
from tests.support.storage.weights_data import LFS_POINTER
from trainctl.errors import SourceError, SourceNotFound
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.bucket import BucketSource
from trainctl.weights.resolution import SourceRequest, resolve

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


def test_a_pointer_of_git_lfs_is_not_the_file(s3: Any, source: BucketSource) -> None:
    put(s3, **{"llm/w.safetensors": LFS_POINTER, "llm/c.json": b"{}"})
    with pytest.raises(SourceError, match=r"w\.safetensors is a Git LFS pointer"):
        resolve(SourceRequest("s3://models/llm", Path()), KEYS, open_source=lambda scheme: source)


def test_a_prefix_is_a_directory(s3: Any, source: BucketSource) -> None:
    """``s3://bucket/a`` has the objects below ``a/``, not those whose names only begin with ``a``."""
    put(s3, **{"a": b"alone", "a/x": b"1", "a/b/y": b"2", "ab/z": b"3"})
    assert paths(source, "s3://models/a") == ["b/y", "x"]
    assert paths(source, "s3://models/a/") == ["b/y", "x"]
    assert paths(source, "s3://models") == ["a", "a/b/y", "a/x", "ab/z"]


def test_an_object_alone_is_one_file(s3: Any, source: BucketSource) -> None:
    """If there is nothing below the prefix, the object of that name is the source."""
    put(s3, **{"dir/model.bin": b"content"})
    uri = "s3://models/dir/model.bin"
    assert paths(source, uri) == ["model.bin"]
    resolved = source.resolve(uri, None, KEYS)
    for reader in (source, BucketSource(environ=source._environ)):
        with reader.open(resolved, resolved.files[0], 3, KEYS) as body:
            assert b"".join(body) == b"tent"
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
