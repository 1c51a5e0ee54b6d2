"""Faults of a server amid a transfer, for each kind of source: no corrupt and no half-done file is stored."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.cases import cases
from tests.support.projects.instant_waits import skip_waits
from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import (
    FaultyHandler,
    HttpFault,
    Hub,
    SeenRequest,
    http_date,
    listen,
    next_fault_for,
    serve,
)
from tests.support.servers.web_server import MODIFIED, NOTHING, STRONG, WEAK, WebServer, serve_web
from tests.support.storage.mirrors import (
    assert_sound,
    contents,
    immediate_retry,
    ingest,
    leftovers,
    mirror_at,
)
from tests.support.storage.weights_data import noise
from tests.support.tiers import sample
from trainctl import errors
from trainctl.base.listing import Listing
from trainctl.base.retry import RetryPolicy
from trainctl.errors import SourceError, SourceInterrupted, SourceMismatch, UserInterrupt
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential, WeightSource
from trainctl.sources.bucket import BucketSource
from trainctl.sources.hf import HubSource
from trainctl.sources.https import HttpsSource
from trainctl.store.store import MirrorStore
from trainctl.weights.resolution import Resolution, SourceRequest, resolve

CHUNK = 2**20
CUT = 2 * CHUNK + 1000
BIG = noise(3 * CHUNK + 12345)
OTHER = noise(3 * CHUNK + 12345, seed=1)
DIGEST = hashlib.sha256(BIG).hexdigest()
ALWAYS = 999


@dataclass
class BucketServer:
    """A server of buckets with a single object ``llm/w.bin``, as the API of ``scheme`` lists it."""

    scheme: str
    content: bytes = BIG
    ranges: bool = True
    faults: list[HttpFault] = field(default_factory=list)
    seen: list[SeenRequest] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def listing(self) -> bytes:
        md5, size = hashlib.md5(self.content).hexdigest(), len(self.content)
        if self.scheme == "azure":
            properties = (
                f"<Last-Modified>Mon, 06 Jan 2025 10:00:00 GMT</Last-Modified><Etag>{md5}</Etag>"
                f"<Content-Length>{size}</Content-Length><Content-Type>x</Content-Type>"
            )
            blob = f"<Blob><Name>llm/w.bin</Name><Properties>{properties}</Properties></Blob>"
            return f"<EnumerationResults><Blobs>{blob}</Blobs></EnumerationResults>".encode()
        return (
            f"<ListBucketResult><Contents><Key>llm/w.bin</Key><Size>{size}</Size><ETag>{md5}</ETag>"
            "<LastModified>2025-01-06T10:00:00.000Z</LastModified></Contents></ListBucketResult>"
        ).encode()


@contextmanager
def serve_bucket(bucket: BucketServer) -> Iterator[str]:
    class Handler(FaultyHandler):
        closing = bucket.closing

        def do_GET(self) -> None:  # noqa: N802  the name is the library's
            parts = urlsplit(self.path)
            path = unquote(parts.path)
            bucket.seen.append(SeenRequest(path, parts.query, dict(self.headers), ""))
            if "list" in parts.query:
                self.answer(200, bucket.listing())
                return
            fault = next_fault_for(bucket.faults, path)
            if fault and fault.kind == "status":
                self.answer(fault.status, fault.body, fault.headers)
                return
            tag = hashlib.md5(bucket.content).hexdigest()
            if bucket.scheme == "s3" and self.headers.get("If-Match", tag).strip('"') != tag:
                self.answer(412, b"")
                return
            headers = {"ETag": f'"{tag}"', "Last-Modified": "Mon, 06 Jan 2025 10:00:00 GMT"}
            self.part(bucket.content, headers, fault, ranges=bucket.ranges)

        do_HEAD = do_GET  # noqa: N815

    with listen(Handler) as url:
        yield url


@dataclass
class Upstream:
    """A server with the file ``w.bin``, and the source that reads it."""

    server: Hub | WebServer | BucketServer
    uri: str
    source: WeightSource
    sha256: str | None = None
    credential: SourceCredential | None = None

    def resolve(self) -> Resolution:
        request = SourceRequest(WeightsSpec(self.uri, sha256=self.sha256), Path("/"))
        return resolve(
            request,
            self.credential,
            retry=immediate_retry(),
            open_source=lambda scheme: self.source,
        )

    def ranges(self) -> list[str | None]:
        """The ranges of the file that were requested from the server."""
        requests = [request for request in self.server.seen if request.path.endswith("w.bin")]
        if isinstance(self.server, WebServer):
            requests = requests[-sum("GET" in line for line in self.server.asked) :]
        return [request.headers.get("Range") for request in requests]

    def forget(self) -> None:
        self.server.seen.clear()
        if isinstance(self.server, WebServer):
            self.server.asked.clear()

    def replace(self) -> None:
        """Put other content of the same size in the place of the file."""
        if isinstance(self.server, WebServer):
            self.server.put("/w.bin", OTHER)
        elif isinstance(self.server, BucketServer):
            self.server.content = OTHER


@contextmanager
def upstream_of(kind: str) -> Iterator[Upstream]:
    name, _, variant = kind.partition("-")
    if name == "hf":
        with serve() as hub:
            hub.add("acme/model", {"w.bin": BIG})
            yield Upstream(hub, "hf://acme/model", HubSource(hub.url, read_timeout=0.5))
    elif name == "https":
        with serve_web(authority().server) as web:
            web.tells = NOTHING if variant == "declared" else variant
            uri = web.put("/w.bin", BIG)
            sha256 = DIGEST if variant == "declared" else None
            yield Upstream(web, uri, HttpsSource(read_timeout=0.5), sha256)
    else:
        bucket = BucketServer(name)
        with serve_bucket(bucket) as url:
            source = BucketSource(name, read_timeout=0.5, environ={})
            place = "acme/models" if name == "azure" else "models"
            nobody = SourceCredential("", "nobody", url)
            yield Upstream(bucket, f"{name}://{place}/llm", source, credential=nobody)


HTTPS = [f"https-{tells}" for tells in (STRONG, WEAK, MODIFIED)]
BUCKETS = ["s3", "gs", "azure"]
KINDS = ["hf", *HTTPS, "https-declared", *BUCKETS]


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Iterator[Upstream]:
    with upstream_of(request.param) as running:
        yield running


def of(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("upstream", kinds, indirect=True)


def mirrored(
    upstream: Upstream,
    root: Path,
    resolution: Resolution | None = None,
    retry: RetryPolicy | None = None,
    **options: Any,
) -> tuple[MirrorStore, Listing]:
    """Resolve the source, unless that is done, and copy it to a mirror."""
    resolved = (resolution or upstream.resolve()).resolved
    store = mirror_at(root, CHUNK)
    if retry is not None:
        store = MirrorStore(store.objects, retry, CHUNK)
    credential = upstream.credential
    return store, ingest(store, resolved, upstream.source, credential=credential, **options)


def assert_nothing_stored(root: Path) -> None:
    assert list(root.glob("listings/*")) == []
    assert leftovers(root) == []


INTERRUPTED = product(
    ["hf", *HTTPS, f"https-{NOTHING}", *BUCKETS], ["cut", "silent"], [True, False]
)


@pytest.mark.parametrize(
    ("upstream", "kind", "ranges"), sample([*INTERRUPTED], 14), indirect=["upstream"]
)
def test_a_body_that_breaks_off_is_requested_again(
    upstream: Upstream, tmp_path: Path, kind: str, ranges: bool
) -> None:
    """The file is complete and counted once, whether or not the server supports ranges."""
    upstream.server.ranges = ranges
    upstream.server.faults = [HttpFault(kind, "w.bin", at=at) for at in (CHUNK + 1000, 2 * CHUNK)]
    progress: list[tuple[int, int, int]] = []
    store, listing = mirrored(upstream, tmp_path, progress=lambda *counts: progress.append(counts))
    assert contents(store, listing) == {"w.bin": BIG}
    assert progress[-1] == (len(BIG), len(BIG), 1)
    assert_sound(tmp_path, CHUNK)
    assert leftovers(tmp_path) == []


@of(*KINDS)
def test_the_next_attempt_resumes_at_the_last_good_chunk(
    upstream: Upstream, tmp_path: Path
) -> None:
    """A second process doesn't request what the first verified before it gave up."""
    resolution = upstream.resolve()
    upstream.server.faults = [HttpFault("cut", "w.bin", ALWAYS, at=CUT)]
    with pytest.raises(SourceInterrupted, match=r"w\.bin.*bytes early") as caught:
        mirrored(upstream, tmp_path, resolution)
    assert "Gave up after 4 attempts. Run the same command again later" in caught.value.detail
    assert_sound(tmp_path, CHUNK)
    assert list(tmp_path.glob("listings/*")) == []
    upstream.server.faults = []
    upstream.forget()
    store, listing = mirrored(upstream, tmp_path, resolution)
    assert contents(store, listing) == {"w.bin": BIG}
    assert upstream.ranges() == [f"bytes={2 * CHUNK}-"]


@of("hf", "https-strong", "s3")
def test_errors_amid_a_transfer_pause_it(upstream: Upstream, tmp_path: Path) -> None:
    upstream.server.faults = [
        HttpFault("cut", "w.bin", at=CUT),
        HttpFault("status", "w.bin", status=500),
        HttpFault("status", "w.bin", status=429, headers={"Retry-After": "0"}),
    ]
    store, listing = mirrored(upstream, tmp_path, retry=immediate_retry(5))
    assert contents(store, listing) == {"w.bin": BIG}
    assert upstream.ranges() == [None, *[f"bytes={CUT}-"] * 3]


@of("hf", "https-declared", "s3")
def test_a_flipped_bit_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    """The digest announced upstream, or declared in the manifest, decides; nothing is stored."""
    upstream.server.faults = [HttpFault("flip", "w.bin", ALWAYS, at=CHUNK + 5)]
    with pytest.raises(SourceError, match=r"w\.bin") as caught:
        mirrored(upstream, tmp_path)
    assert upstream.sha256 is None or f"{DIGEST}, got " in caught.value.detail
    assert_sound(tmp_path, CHUNK)
    assert list(tmp_path.glob("listings/*")) == []
    upstream.server.faults = []
    store, listing = mirrored(upstream, tmp_path)
    assert contents(store, listing) == {"w.bin": BIG}
    if isinstance(upstream.server, Hub):
        upstream.server.add("acme/model", {"config.json": b'{"a": 1}'})
        upstream.server.faults = [HttpFault("flip", "config.json", ALWAYS, at=3)]
        with pytest.raises(SourceMismatch, match=r"config\.json.*differs") as caught:
            mirrored(upstream, tmp_path / "git")
        assert "Expected git blob id" in caught.value.detail
        assert_nothing_stored(tmp_path / "git")
    if upstream.sha256:
        resolution = upstream.resolve()
        upstream.replace()
        with pytest.raises(SourceMismatch, match="differs from the digest declared"):
            mirrored(upstream, tmp_path / "second", resolution)
        assert_nothing_stored(tmp_path / "second")


@of("hf", "https-strong", *BUCKETS)
def test_a_longer_file_than_announced_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    upstream.server.faults = [HttpFault("longer", "w.bin", ALWAYS)]
    with pytest.raises(SourceMismatch, match=f"{len(BIG) + 1} bytes, expected {len(BIG)}"):
        mirrored(upstream, tmp_path)
    assert list(tmp_path.glob("listings/*")) == []


@of(*HTTPS, *BUCKETS)
@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no-ranges"])
def test_content_that_changes_amid_a_transfer_is_refused(
    upstream: Upstream, tmp_path: Path, ranges: bool
) -> None:
    """The second request gets another version: no file is half of one and half of the other."""
    upstream.server.ranges = ranges
    upstream.server.faults = [HttpFault("cut", "w.bin", at=CUT)]
    resolution = upstream.resolve()
    retry = replacing(upstream)
    for root in (tmp_path / "amid", tmp_path / "from the start"):
        with pytest.raises(SourceMismatch, match=r"has changed since.* before, .* now"):
            mirrored(upstream, root, resolution, retry)
        assert_nothing_stored(root)


def replacing(upstream: Upstream) -> RetryPolicy:
    """Retries before which the file is replaced."""
    return RetryPolicy(attempts=4, wait=lambda cancelled, seconds: upstream.replace())


@of(f"https-{NOTHING}")
def test_unidentified_content_is_never_combined(upstream: Upstream, tmp_path: Path) -> None:
    """If the file is replaced by one of the same size, all of the stored file is the second one."""
    resolution = upstream.resolve()
    upstream.server.faults = [HttpFault("cut", "w.bin", at=CUT)]
    retry = replacing(upstream)
    store, listing = mirrored(upstream, tmp_path, resolution, retry)
    assert contents(store, listing) == {"w.bin": OTHER}
    upstream.server.faults = [HttpFault("cut", "w.bin", ALWAYS, at=CUT)]
    with pytest.raises(SourceInterrupted):
        mirrored(upstream, tmp_path / "second", resolution)
    assert leftovers(tmp_path / "second") == []


@of("https-declared")
def test_declared_content_is_fetched_once(upstream: Upstream, tmp_path: Path) -> None:
    """The mirror has the digest, so another address of it costs a single HEAD."""
    web = upstream.server
    assert isinstance(web, WebServer)
    _, first = mirrored(upstream, tmp_path)
    upstream.uri = web.put("/elsewhere/w.bin", BIG)
    upstream.forget()
    _, second = mirrored(upstream, tmp_path)
    assert second.id == first.id
    assert web.asked == ["HEAD /elsewhere/w.bin"]


@of("hf", "https-strong", "s3")
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(upstream: Upstream, tmp_path: Path, form: str) -> None:
    after = "7" if form == "seconds" else http_date(7)
    fault = HttpFault("status", "w.bin", 2, status=429, headers={"Retry-After": after})
    upstream.server.faults = [fault]
    waits: list[float] = []

    def wait(_: object, seconds: float) -> None:
        waits.append(seconds)
        skip_waits()

    retry = RetryPolicy(wait=wait, jitter=lambda: 0.0)
    store, listing = mirrored(upstream, tmp_path, retry=retry)
    assert contents(store, listing) == {"w.bin": BIG}
    assert len(waits) == 2
    assert 0 < min(waits) <= max(waits) < 9


@pytest.mark.parametrize("case", cases("sources/refusals"))
def test_a_refusal_names_the_file_and_says_what_to_do(
    tmp_path: Path, case: Mapping[str, Any]
) -> None:
    """The status while resolving or reading decides the kind of the error and its advice."""
    with upstream_of(case.get("source", "hf")) as upstream:
        path = "/revision/main" if case.get("while") == "resolving" else "w.bin"
        headers = case.get("headers", {})
        body = case.get("body", "no").encode()
        fault = HttpFault("status", path, ALWAYS, status=case["status"], headers=headers, body=body)
        if "token" in case:
            upstream.credential = SourceCredential(case["token"], "HF_TOKEN")
        upstream.server.faults = [fault]
        with pytest.raises(getattr(errors, case["error"])) as caught:
            mirrored(upstream, tmp_path)
    assert type(caught.value).__name__ == case["error"]
    assert "w.bin" in caught.value.summary or case.get("while") == "resolving"
    assert str(caught.value.summary).startswith(upstream.uri)
    assert case["summary"] in caught.value.summary
    assert case["advice"] in caught.value.detail
    assert case.get("not", "no such text") not in str(caught.value)
    assert_nothing_stored(tmp_path)


@of("hf")
def test_a_cancelled_transfer_stops_soon_and_resumes(upstream: Upstream, tmp_path: Path) -> None:
    upstream.server.faults = [HttpFault("silent", "w.bin", at=CUT)]
    assert isinstance(upstream.server, Hub)
    upstream.source = HubSource(upstream.server.url, read_timeout=60)
    cancelled = threading.Event()

    def progress(done: int, total: int, files: int) -> None:
        if done >= CHUNK:
            cancelled.set()

    with pytest.raises(UserInterrupt):
        mirrored(upstream, tmp_path, progress=progress, cancelled=cancelled)
    upstream.server.closing.set()
    store, listing = mirrored(upstream, tmp_path)
    assert contents(store, listing) == {"w.bin": BIG}
