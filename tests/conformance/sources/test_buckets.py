"""Buckets as weight sources: S3 by rclone, which checks signatures, Google's API, Azure by azurite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest

from tests.support.servers.bucket_stores import SERVERS, Server, place_in
from tests.support.servers.buckets import KEY_ID, SECRET
from tests.support.servers.clouds import ACCOUNT, ACCOUNT_KEY
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.buckets.bucket import Bucket
from trainctl.buckets.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.bucket import BucketSource
from trainctl.testing.weight_source import UpstreamFixture, WeightSourceConformance

KEYS = json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET})


class OpenedSource(BucketSource):
    """Opens ``open/`` with a key if the test has none, as rclone requires one."""

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        return super().resolve(uri, revision, _key_for(uri, credential))

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        return super().presigned_url(resolved, file, _key_for(resolved.source, credential))

    def _resolved(self, resolved: ResolvedSource, credential: SourceCredential | None) -> Bucket:
        return super()._resolved(resolved, _key_for(resolved.source, credential))


def _key_for(uri: str, credential: SourceCredential | None) -> SourceCredential | None:
    return SourceCredential(KEYS, "test") if "/open" in uri and not credential else credential


class OfBuckets(WeightSourceConformance):
    platform: ClassVar[str]
    server: ClassVar[Server]

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with SERVERS[cls.platform](tmp_path_factory.mktemp("server")) as cls.server:
            yield

    def fill(self, files: Mapping[str, bytes], *urls: str) -> dict[str, str]:
        """Replace the files below these URLs; the environment of the source."""
        _, environ, value = place_in(self.server, "")
        for url in urls:
            location = parse_bucket_location(url, None, environ)
            bucket = Bucket(location, SourceCredential(value, "test"), environ)
            for info in [*bucket.list()]:
                bucket.delete([info.key])
            for path, data in files.items():
                bucket.put(path, data)
        return environ


class TestS3(OfBuckets):
    platform = "rclone"

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        uri, private = "s3://models/open", "s3://models/closed"
        source = OpenedSource(read_timeout=20, environ=self.fill(files, uri, private))
        return UpstreamFixture(source, uri, f"{uri}/none", SourceCredential(KEYS, "test"), private)


class TestGoogle(OfBuckets):
    platform = "google"

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        uri = "gs://models/open"
        source = BucketSource("gs", read_timeout=20, environ=self.fill(files, uri))
        return UpstreamFixture(source, uri, "gs://models/none")


class TestAzure(OfBuckets):
    platform = "azure"

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        uri, private = (f"azure://{ACCOUNT}/{container}/dir" for container in ("open", "closed"))
        source = BucketSource("azure", read_timeout=20, environ=self.fill(files, uri, private))
        key = SourceCredential(json.dumps({"account_key": ACCOUNT_KEY}), "test")
        return UpstreamFixture(source, uri, f"{uri}-none", key, private)
