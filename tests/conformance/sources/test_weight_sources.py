from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import Hub, serve
from tests.support.servers.web_server import MODIFIED, STRONG, serve_web
from trainctl.errors import SourceMismatch
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.file import FileSource
from trainctl.sources.hf import HubSource
from trainctl.sources.https import HttpsSource
from trainctl.testing.weight_source import UpstreamFixture, WeightSourceConformance


class TestFile(WeightSourceConformance):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "up stream"

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        for path, data in files.items():
            target = self.directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_bytes(data)
        uri = f"file://{self.directory}"
        return UpstreamFixture(FileSource(), uri, f"{uri}/none")


class TestHub(WeightSourceConformance):
    dataset = False
    ranges = True

    @pytest.fixture(autouse=True)
    def _hub(self) -> Iterator[None]:
        with serve() as hub:
            hub.ranges = self.ranges
            hub.page_size = 3
            self.hub = hub
            yield

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        hub: Hub = self.hub
        hub.add("acme/model", files, dataset=self.dataset)
        hub.add("acme/closed", files, dataset=self.dataset, private=True)
        prefix = "hf://datasets/" if self.dataset else "hf://"
        return UpstreamFixture(
            HubSource(hub.url, read_timeout=5),
            f"{prefix}acme/model",
            f"{prefix}acme/none",
            SourceCredential(hub.token, "test"),
            f"{prefix}acme/closed",
        )


class TestHubDataset(TestHub):
    dataset = True


class TestHubWithoutRanges(TestHub):
    ranges = False


class TestHubWithStorage(TestHub):
    """Large files are at another address, to which the Hub sends who may read them."""

    @pytest.fixture(autouse=True)
    def _storage(self, _hub: None) -> Iterator[None]:
        with serve(self.hub):
            yield

    def test_only_a_file_in_the_storage_has_a_presigned_url(self) -> None:
        """A request for a large private file returns its URL; a small one is relayed without any."""
        upstream = self.place({"weights.bin": b"x" * 100, "config.json": b"{}"})
        assert upstream.private is not None
        resolved = upstream.source.resolve(upstream.private, None, upstream.credential)
        self.hub.seen.clear()

        small, large = (
            upstream.source.presigned_url(resolved, file, upstream.credential)
            for file in resolved.files
        )

        assert small is None
        assert (large or "").startswith(str(self.hub.cdn))
        assert [request.path.rpartition("/")[2] for request in self.hub.seen] == ["weights.bin"]
        assert self.hub.seen[0].path.startswith("/acme/")


class TestHubBucket(TestHubWithStorage):
    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        keys = {f"runs/step 1/{path}": data for path, data in files.items()}
        keys |= {"runs/step 10/x": b"x"}
        self.hub.buckets = {"acme/data": keys, "acme/closed": keys}
        uri, missing, private = (
            f"hf://buckets/acme/{name}/runs/step 1" for name in ("data", "none", "closed")
        )
        credential = SourceCredential(self.hub.token, "test")
        source = HubSource(self.hub.url, read_timeout=5)
        return UpstreamFixture(source, uri, missing, credential, private)

    def test_only_a_file_in_the_storage_has_a_presigned_url(self) -> None:
        """All files are there. Each is read in the version that was listed; the storage gets no token."""
        upstream = self.place({"w.bin": b"first"})
        source, credential = upstream.source, upstream.credential
        resolved = source.resolve(f"{upstream.uri}/w.bin", None, credential)
        (file,) = resolved.files
        link = source.presigned_url(resolved, file, credential) or ""
        assert (file.path, link.startswith(f"{self.hub.cdn}/xet/")) == ("w.bin", True)
        assert b"".join(self._read(source, resolved, "w.bin", 0)) == b"first"
        (storage,) = (request for request in self.hub.seen if request.path.startswith("/xet/"))
        assert "Authorization" not in storage.headers
        self.place({"w.bin": b"other"})
        with pytest.raises(SourceMismatch, match=r"w\.bin has changed since"):
            list(self._read(source, resolved, "w.bin", 0))


class TestHttps(WeightSourceConformance):
    one_file = True
    tells = STRONG
    ranges = True
    head: int | None = None

    @pytest.fixture(autouse=True)
    def _web(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
        with serve_web(authority().server) as web:
            web.tells, web.ranges, web.head = self.tells, self.ranges, self.head
            self.web = web
            yield

    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        self.web.pages = {page: self.web.pages[page] for page in self.web.pages if files}
        uri = private = missing = f"{self.web.url}/open/none"
        for path, data in files.items():
            uri = self.web.put(f"/open/{path}", data)
            private = self.web.put(f"/closed/{path}", data)
        credential = SourceCredential(self.web.token, "test")
        return UpstreamFixture(HttpsSource(read_timeout=5), uri, missing, credential, private)


class TestHttpsWithoutRanges(TestHttps):
    ranges = False


class TestHttpsSignedForGet(TestHttps):
    head = 403
    tells = MODIFIED
