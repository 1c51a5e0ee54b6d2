"""Buckets as weight sources: S3 by moto and rclone, R2, Google by gcp-storage-emulator, Azure by azurite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import pytest

from tests.support.buckets import KEY_ID, SECRET, Bucket, moto, rclone
from tests.support.clouds import ACCOUNT, ACCOUNT_KEY, Azure, azure
from tests.support.google_xml import GoogleXml, google_xml
from tests.support.tiers import one_day_in
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.objects.access import AwsKeys
from trainctl.objects.location import location_of
from trainctl.objects.store import Bucket as Store
from trainctl.sources.bucket import BucketSource
from trainctl.spi.sources import Credential, Fill, PartSource, Span
from trainctl.testing.weight_source import Upstream, WeightSourceConformance

KEYS = json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET})


class Opened:
    """Opens ``open/`` with a key where the test has none: S3's servers here let nobody in without one."""

    def __init__(self, inner: PartSource) -> None:
        self._inner = inner

    def resolve(
        self, uri: str, revision: str | None, credential: Credential | None
    ) -> ResolvedSource:
        return self._inner.resolve(uri, revision, self._key_for(uri, credential))

    def server(self, uri: str, credential: Credential | None) -> str | None:
        return self._inner.server(uri, self._key_for(uri, credential))

    def link(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str | None:
        return self._inner.link(resolved, file, self._key_for(resolved.source, credential))

    def relays(self, file: SourceFile, credential: Credential | None) -> bool:
        return self._inner.relays(file, credential)

    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> AbstractContextManager[Iterator[bytes]]:
        key = self._key_for(resolved.source, credential)
        return self._inner.open(resolved, file, offset, key)

    def part(
        self, resolved: ResolvedSource, file: SourceFile, span: Span, credential: Credential | None
    ) -> AbstractContextManager[Fill | None]:
        key = self._key_for(resolved.source, credential)
        return self._inner.part(resolved, file, span, key)

    def _key_for(self, uri: str, credential: Credential | None) -> Credential | None:
        return Credential(KEYS, "test") if "/open" in uri and not credential else credential


class OfS3(WeightSourceConformance):
    scheme = "s3://"
    server: Bucket
    answers_anybody = False
    """Whether listing needs no credential, as with moto."""

    def place(self, files: Mapping[str, bytes]) -> Upstream:
        for directory in ("open", "closed"):
            where = location_of(f"s3://models/{directory}", self.server.endpoint, {})
            store = Store(where, AwsKeys(KEY_ID, SECRET), environ={})
            for gone in [*store.list()]:
                store.delete(gone.key)
            for path, data in files.items():
                store.put(path, data)
        environ = {"AWS_ENDPOINT_URL": self.server.endpoint}
        uri = f"{self.scheme}models/"
        credential = None if self.answers_anybody else Credential(KEYS, "test")
        private = None if self.answers_anybody else f"{uri}closed"
        return Upstream(
            Opened(BucketSource(self.scheme[:2], silence=20, environ=environ)),
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
        with moto() as cls.server:
            yield


@one_day_in(5)
class TestR2(TestS3):
    scheme = "r2://0123456789abcdef."


@one_day_in(3)
class TestS3Signed(OfS3):
    """rclone looks at signatures, and ignores conditions."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with rclone(tmp_path_factory.mktemp("server") / "rclone") as cls.server:
            yield


@one_day_in(3)
class TestGoogle(WeightSourceConformance):
    server: GoogleXml

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        with google_xml() as cls.server:
            yield

    def place(self, files: Mapping[str, bytes]) -> Upstream:
        environ = {"STORAGE_EMULATOR_HOST": self.server.url}
        bucket = Store(location_of("gs://models/open", None, environ), environ=environ)
        for found in [*bucket.list()]:
            bucket.delete(found.key)
        for path, data in files.items():
            bucket.put(path, data)
        source = BucketSource("gs", silence=20, environ=environ)
        return Upstream(source, "gs://models/open", "gs://models/none")


@one_day_in(3)
class TestAzure(WeightSourceConformance):
    server: Azure

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with azure(tmp_path_factory.mktemp("server")) as cls.server:
            yield

    def place(self, files: Mapping[str, bytes]) -> Upstream:
        server = self.server
        for container in ("open", "closed"):
            store = server.bucket(container, "dir")
            for gone in [*store.list()]:
                store.delete(gone.key)
            for path, data in files.items():
                store.put(path, data)
        environ = {"AZURE_STORAGE_ENDPOINT": server.endpoint.rpartition("/")[0]}
        uri = f"azure://{ACCOUNT}"
        return Upstream(
            BucketSource("azure", silence=20, environ=environ),
            f"{uri}/open/dir",
            f"{uri}/open/none",
            Credential(json.dumps({"account_key": ACCOUNT_KEY}), "test"),
            f"{uri}/closed/dir",
        )
