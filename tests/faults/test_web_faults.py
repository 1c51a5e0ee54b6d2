"""What a web server can do wrong amid a transfer: nothing half-done stays, and no file is half of one version and half of another."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.support.projects.instant_waits import record_waits
from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import HttpFault
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
from trainctl.base.listing import Listing
from trainctl.base.retry import RetryPolicy
from trainctl.errors import SourceInterrupted, SourceMismatch
from trainctl.sources.https import HttpsSource
from trainctl.store.store import MirrorStore
from trainctl.weights.resolution import Resolution, SourceRequest, resolve

CHUNK = 2**20
BIG = noise(3 * CHUNK + 12345)
OTHER = noise(3 * CHUNK + 12345, seed=1)
DIGEST = hashlib.sha256(BIG).hexdigest()
ALWAYS = 999


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
    with serve_web(authority().server) as running:
        running.put("/w.bin", BIG)
        yield running


def resolved_from(web: WebServer, sha256: str | None = None) -> Resolution:
    return resolve(
        SourceRequest(f"{web.url}/w.bin", Path("/"), sha256=sha256), retry=immediate_retry()
    )


def mirrored(
    web: WebServer, root: Path, found: Resolution, retry: RetryPolicy | None = None
) -> tuple[MirrorStore, Listing]:
    mirror = replace(mirror_at(root, CHUNK), retry=retry or immediate_retry())
    return mirror, ingest(mirror, found.resolved, HttpsSource(read_timeout=0.5))


def ranges(web: WebServer) -> list[str | None]:
    """What was asked for by GET."""
    asked = zip(web.asked, web.seen, strict=True)
    return [one.headers.get("Range") for what, one in asked if what.startswith("GET")]


@pytest.mark.parametrize(
    ("tells", "kind", "knows_ranges"),
    sample([*product((STRONG, WEAK, MODIFIED, NOTHING), ("cut", "silent"), (True, False))], 4, 3),
)
def test_a_body_that_breaks_off_is_asked_for_again(
    web: WebServer, tmp_path: Path, tells: str, kind: str, knows_ranges: bool
) -> None:
    """Whatever the server tells, and whether or not it knows ranges, the file arrives whole, counted once."""
    web.tells, web.ranges = tells, knows_ranges
    web.faults = [
        HttpFault(kind, "/w.bin", at=CHUNK + 1000),
        HttpFault(kind, "/w.bin", at=2 * CHUNK),
    ]
    found = resolved_from(web)
    seen: list[tuple[int, int, int]] = []
    mirror = mirror_at(tmp_path, CHUNK)
    source = HttpsSource(read_timeout=0.5)
    listing = ingest(mirror, found.resolved, source, progress=lambda *one: seen.append(one))
    assert contents(mirror, listing) == {"w.bin": BIG}
    assert seen[-1] == (len(BIG), len(BIG), 1)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("tells", "declared"), [(STRONG, None), (WEAK, None), (MODIFIED, None), (NOTHING, DIGEST)])  # fmt: skip
def test_the_next_try_goes_on_at_the_last_good_chunk(
    web: WebServer, tmp_path: Path, tells: str, declared: str | None
) -> None:
    """What was verified before a process gave up is not asked for again by the next one."""
    web.tells = tells
    found = resolved_from(web, declared)
    web.faults = [HttpFault("cut", "/w.bin", ALWAYS, at=2 * CHUNK + 1000)]
    with pytest.raises(SourceInterrupted):
        mirrored(web, tmp_path, found)
    assert_sound(tmp_path, CHUNK)
    assert list(tmp_path.glob("listings/*")) == []
    web.faults.clear()
    web.forget()
    mirror, listing = mirrored(web, tmp_path, found)
    assert contents(mirror, listing) == {"w.bin": BIG}
    assert ranges(web) == [f"bytes={2 * CHUNK}-"]


def test_what_nothing_identifies_is_never_put_together_from_parts(
    web: WebServer, tmp_path: Path
) -> None:
    """The file is another one of the same size when it is asked for again: what is kept is all of that one."""
    web.tells = NOTHING
    found = resolved_from(web)
    web.faults = [HttpFault("cut", "/w.bin", at=2 * CHUNK + 1000)]

    def change(cancelled: threading.Event, seconds: float) -> None:
        web.put("/w.bin", OTHER)

    mirror, listing = mirrored(web, tmp_path, found, RetryPolicy(attempts=4, wait=change))
    assert contents(mirror, listing) == {"w.bin": OTHER}
    web.faults = [HttpFault("cut", "/w.bin", ALWAYS, at=2 * CHUNK)]
    with pytest.raises(SourceInterrupted):
        mirrored(web, tmp_path / "second", found)
    assert leftovers(tmp_path / "second") == []


@pytest.mark.parametrize("knows_ranges", [True, False])
@pytest.mark.parametrize("tells", [STRONG, WEAK, MODIFIED])
def test_content_that_changes_amid_a_transfer_is_refused(
    web: WebServer, tmp_path: Path, tells: str, knows_ranges: bool
) -> None:
    """The second request finds another version: nothing is kept, and the error says that it changed."""
    web.tells, web.ranges = tells, knows_ranges
    found = resolved_from(web)
    web.faults = [HttpFault("cut", "/w.bin", at=2 * CHUNK + 1000)]

    def change(cancelled: threading.Event, seconds: float) -> None:
        web.put("/w.bin", OTHER)

    with pytest.raises(SourceMismatch, match="has changed since it was resolved"):
        mirrored(web, tmp_path, found, RetryPolicy(attempts=4, wait=change))
    assert list(tmp_path.glob("listings/*")) == []
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("fault", [HttpFault("flip", "/w.bin", at=CHUNK + 5), None])
def test_content_that_is_not_the_declared_one_is_refused(
    web: WebServer, tmp_path: Path, fault: HttpFault | None
) -> None:
    """A bit that fell over, or another file: both digests are in the error, and nothing of it is kept."""
    found = resolved_from(web, DIGEST)
    if fault:
        web.faults = [fault]
    else:
        web.put("/w.bin", OTHER)
    with pytest.raises(SourceMismatch, match="differs from the digest declared") as caught:
        mirrored(web, tmp_path, found)
    assert f"{DIGEST}, got " in caught.value.detail
    assert list(tmp_path.glob("listings/*")) == []
    assert leftovers(tmp_path) == []


def test_declared_content_is_fetched_once_from_anywhere(web: WebServer, tmp_path: Path) -> None:
    """The same digest under another address costs nothing: its content is here."""
    _, first = mirrored(web, tmp_path, resolved_from(web, DIGEST))
    web.put("/elsewhere/w.bin", BIG)
    web.forget()
    wanted = SourceRequest(f"{web.url}/elsewhere/w.bin", Path("/"), sha256=DIGEST)
    _, second = mirrored(web, tmp_path, resolve(wanted))
    assert second.id == first.id
    assert web.asked == ["HEAD /elsewhere/w.bin"]


def test_a_longer_file_than_announced_is_refused(web: WebServer, tmp_path: Path) -> None:
    """One byte more than was planned for is another file."""
    found = resolved_from(web)
    web.faults = [HttpFault("longer", "/w.bin", ALWAYS)]
    with pytest.raises(SourceMismatch, match=f"{len(BIG) + 1} bytes, expected {len(BIG)}"):
        mirrored(web, tmp_path, found)
    assert list(tmp_path.glob("listings/*")) == []


def test_a_busy_server_is_waited_for(web: WebServer, tmp_path: Path) -> None:
    """429 with Retry-After: that long, then it goes on."""
    found = resolved_from(web)
    web.faults = [HttpFault("status", "/w.bin", status=429, headers={"Retry-After": "7"})]
    waits: list[float] = []
    retry = RetryPolicy(wait=record_waits(waits))
    mirror, listing = mirrored(web, tmp_path, found, retry)
    assert contents(mirror, listing) == {"w.bin": BIG}
    assert len(waits) == 1
    assert 7 <= waits[0] < 9
