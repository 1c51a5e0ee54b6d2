"""A bucket of S3 for tests of what reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from tests.support.buckets import KEY_ID, SECRET, Bucket, moto
from trainctl.sources.bucket import BucketSource


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    """By moto."""
    with moto() as running:
        yield running


@pytest.fixture
def s3(server: Bucket) -> Any:
    """A client that nobody here wrote, of an empty bucket."""
    client = boto3.client(
        "s3", endpoint_url=server.endpoint, region_name="us-east-1",
        aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET,
    )  # fmt: skip
    for one in client.list_objects_v2(Bucket="models").get("Contents", []):
        client.delete_object(Bucket="models", Key=one["Key"])
    return client


@pytest.fixture
def source(server: Bucket) -> BucketSource:
    """The source of that server's buckets."""
    return BucketSource(environ={"AWS_ENDPOINT_URL": server.endpoint})
