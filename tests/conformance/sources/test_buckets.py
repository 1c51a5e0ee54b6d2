"""Buckets as weight sources: S3 by moto and rclone, Google by gcp-storage-emulator, Azure by azurite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, moto, rclone
from tests.support.servers.clouds import ACCOUNT, ACCOUNT_KEY, AzureAccount, azure
from tests.support.servers.google_xml import GoogleXml, google_xml
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.objects.bucket_client import Bucket as Store
from trainctl.objects.credentials import AwsKeys
from trainctl.objects.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.bucket import BucketSource
from trainctl.testing.weight_source import UpstreamFixture, WeightSourceConformance

KEYS = json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET})


class OpenedSource(BucketSource):
    """Opens ``open/`` with a key if the test has none: these servers of S3 require one."""

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        return super().resolve(uri, revision, _key_for(uri, credential))

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        return super().presigned_url(resolved, file, _key_for(resolved.source, credential))

    def _resolved(self, resolved: ResolvedSource, credential: SourceCredential | None) -> Store:
        return super()._resolved(resolved, _key_for(resolved.source, credential))


def _key_for(uri: str, credential: SourceCredential | None) -> SourceCredential | None:
    return SourceCredential(KEYS, "test") if "/open" in uri and not credential else credential


class OfS3(WeightSourceConformance):
    custom_endpoint: BucketServer
    answers_anybody = False
    """Whether listing needs no credential, as with moto."""

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        for directory in ("open", "closed"):
            where = parse_bucket_location(
                f"s3://models/{directory}", self.custom_endpoint.endpoint, {}
            )
            store = Store(where, AwsKeys(KEY_ID, SECRET), environ={})
            for gone in [*store.list()]:
                store.delete(gone.key)
            for path, data in files.items():
                store.put(path, data)
        environ = {"AWS_ENDPOINT_URL": self.custom_endpoint.endpoint}
        uri = "s3://models/"
        credential = None if self.answers_anybody else SourceCredential(KEYS, "test")
        private = None if self.answers_anybody else f"{uri}closed"
        return UpstreamFixture(
            OpenedSource(read_timeout=20, environ=environ),
            f"{uri}open",
            f"{uri}open/none",
            credential,
            private,
        )


class TestS3(OfS3):
    answers_anybody = True

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        with moto() as cls.custom_endpoint:
            yield


class TestS3Signed(OfS3):
    """rclone looks at signatures, and ignores conditions."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with rclone(tmp_path_factory.mktemp("server") / "rclone") as cls.custom_endpoint:
            yield


class TestGoogle(WeightSourceConformance):
    custom_endpoint: GoogleXml

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        with google_xml() as cls.custom_endpoint:
            yield

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        environ = {"STORAGE_EMULATOR_HOST": self.custom_endpoint.url}
        bucket = Store(parse_bucket_location("gs://models/open", None, environ), environ=environ)
        for found in [*bucket.list()]:
            bucket.delete(found.key)
        for path, data in files.items():
            bucket.put(path, data)
        source = BucketSource("gs", read_timeout=20, environ=environ)
        return UpstreamFixture(source, "gs://models/open", "gs://models/none")


class TestAzure(WeightSourceConformance):
    custom_endpoint: AzureAccount

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with azure(tmp_path_factory.mktemp("server")) as cls.custom_endpoint:
            yield

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        custom_endpoint = self.custom_endpoint
        for container in ("open", "closed"):
            store = custom_endpoint.bucket(container, "dir")
            for gone in [*store.list()]:
                store.delete(gone.key)
            for path, data in files.items():
                store.put(path, data)
        environ = {"AZURE_STORAGE_ENDPOINT": custom_endpoint.endpoint.rpartition("/")[0]}
        uri = f"azure://{ACCOUNT}"
        return UpstreamFixture(
            BucketSource("azure", read_timeout=20, environ=environ),
            f"{uri}/open/dir",
            f"{uri}/open/none",
            SourceCredential(json.dumps({"account_key": ACCOUNT_KEY}), "test"),
            f"{uri}/closed/dir",
        )
