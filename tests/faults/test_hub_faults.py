"""What a Hub can do wrong, through real sockets: none of it leaves anything half-done under a final name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects.instant_waits import record_waits
from tests.support.servers.hub import HttpFault, Hub, http_date, serve
from tests.support.storage.mirrors import (
    assert_sound,
    contents,
    immediate_retry,
    ingest,
    leftovers,
    mirror_at,
)
from tests.support.storage.weights_data import noise
from trainctl.base.listing import Listing
from trainctl.base.retry import RetryPolicy
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceNotFound,
    SourceUnavailable,
    UserInterrupt,
)
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.hf import HubSource
from trainctl.store.store import MirrorStore
from trainctl.weights.resolution import Resolution, SourceRequest, resolve

CHUNK = 2**20
BIG = noise(5 * CHUNK + 12345)
FILES = {"model.safetensors": BIG, "config.json": b'{"a": 1}'}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


def resolved_from(
    hub: Hub, uri: str = "hf://acme/model", credential: SourceCredential | None = None
) -> tuple[HubSource, Resolution]:
    source = HubSource(hub.url, read_timeout=0.5)
    wanted = SourceRequest(uri, Path("/"))
    found = resolve(wanted, credential, retry=immediate_retry(), open_source=lambda scheme: source)
    return source, found


def mirrored(hub: Hub, root: Path, attempts: int = 4) -> tuple[MirrorStore, Listing]:
    source, found = resolved_from(hub)
    mirror = mirror_at(root, CHUNK, attempts)
    return mirror, ingest(mirror, found.resolved, source)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("kind", ["cut", "silent"])
def test_a_body_that_breaks_off_is_asked_for_again(
    hub: Hub, tmp_path: Path, kind: str, ranges: bool
) -> None:
    """After a cut or silence the rest is asked for, by range, and the content is whole; also where ranges are unknown."""
    hub.ranges = ranges
    hub.faults = [HttpFault(kind, "model.safetensors", times=3, at=2_500_000)]
    mirror, listing = mirrored(hub, tmp_path)
    assert contents(mirror, listing) == FILES
    asked = [seen.headers.get("Range") for seen in hub.asked("model.safetensors")]
    assert asked[0] is None
    assert asked[1] == ("bytes=2500000-" if kind == "cut" else f"bytes={2 * CHUNK}-")
    assert_sound(tmp_path, CHUNK)


def test_a_body_that_always_breaks_off_is_given_up(hub: Hub, tmp_path: Path) -> None:
    """Patience ends: SourceInterrupted names the file, and what came is kept for the next time."""
    hub.faults = [HttpFault("cut", "model.safetensors", times=99, at=2_500_000)]
    with pytest.raises(SourceInterrupted, match=r"model\.safetensors"):
        mirrored(hub, tmp_path)
    hub.faults.clear()
    hub.seen.clear()
    mirror, listing = mirrored(hub, tmp_path)
    assert [seen.headers.get("Range") for seen in hub.asked("model.safetensors")] == [
        f"bytes={2 * CHUNK}-"
    ]
    assert contents(mirror, listing) == FILES


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_corrupted_body_of_the_right_length_is_refused(
    hub: Hub, tmp_path: Path, path: str
) -> None:
    """A flipped bit is seen by the LFS sha256 and by the git blob id; nothing of the file is kept."""
    hub.faults = [HttpFault("flip", path, at=3)]
    with pytest.raises(SourceMismatch, match=path) as caught:
        mirrored(hub, tmp_path)
    assert "The file was not stored" in str(caught.value)
    assert path != "model.safetensors" or leftovers(tmp_path) == []
    assert not list(tmp_path.glob("listings/*"))
    assert_sound(tmp_path, CHUNK)
    mirror, listing = mirrored(hub, tmp_path)
    assert contents(mirror, listing) == FILES


def test_a_body_of_another_length_is_refused(hub: Hub, tmp_path: Path) -> None:
    """One byte more than announced is SourceMismatch before anything is written."""
    hub.faults = [HttpFault("longer", "model.safetensors")]
    with pytest.raises(SourceMismatch, match=r"model\.safetensors"):
        mirrored(hub, tmp_path)


@pytest.mark.parametrize("after", ["7", "date"])
def test_too_many_requests_waits_as_long_as_asked(hub: Hub, tmp_path: Path, after: str) -> None:
    """429 with Retry-After, in seconds or as a date, is waited for and then goes on."""
    waited: list[float] = []
    retry = RetryPolicy(wait=record_waits(waited), jitter=lambda: 0.0)
    asked = http_date(7) if after == "date" else after
    hub.faults = [HttpFault("status", "main", 2, status=429, headers={"Retry-After": asked})]
    source = HubSource(hub.url)
    resolve(
        SourceRequest("hf://acme/model", tmp_path), retry=retry, open_source=lambda scheme: source
    )
    assert len(waited) == 2
    assert all(5 <= seconds < 9 for seconds in waited)


def test_a_wait_beyond_patience_is_an_error(hub: Hub, tmp_path: Path) -> None:
    """Retry-After of an hour isn't waited for: the error says how long it would be."""
    hub.faults = [HttpFault("status", "main", 1, status=429, headers={"Retry-After": "3600"})]
    source = HubSource(hub.url)
    with pytest.raises(SourceUnavailable, match="1h") as caught:
        resolve(SourceRequest("hf://acme/model", tmp_path), open_source=lambda scheme: source)
    assert caught.value.retry_after == 3600


@pytest.mark.parametrize(
    ("status", "headers", "error", "says"),
    [
        (401, {}, SourceDenied, "auth_secret_name"),
        (403, {}, SourceDenied, "auth_secret_name"),
        (401, {"X-Error-Code": "GatedRepo"}, SourceDenied, "licence"),
        (404, {"X-Error-Code": "EntryNotFound"}, SourceNotFound, "revision"),
        (500, {}, SourceUnavailable, "500"),
        (418, {}, SourceError, "418"),
    ],
)
def test_a_refusal_names_the_file_and_says_what_to_do(
    hub: Hub,
    tmp_path: Path,
    status: int,
    headers: dict[str, str],
    error: type[SourceError],
    says: str,
) -> None:
    """Each status of a file becomes its own error with the file's name and advice."""
    hub.faults = [HttpFault("status", "config.json", 99, status=status, headers=headers)]
    with pytest.raises(error) as caught:
        mirrored(hub, tmp_path)
    assert type(caught.value) is error
    assert "config.json" in caught.value.summary
    assert says in str(caught.value)
    assert not list(tmp_path.glob("listings/*"))


def test_unknown_repositories_and_revisions_are_gone(hub: Hub) -> None:
    """A wrong name and a wrong revision are told apart."""
    with pytest.raises(SourceNotFound, match="hf://acme/none"):
        resolved_from(hub, "hf://acme/none")
    with pytest.raises(SourceNotFound, match="revision not found"):
        resolved_from(hub, "hf://acme/model@v9")


def test_a_gated_repository_is_refused_when_planning(hub: Hub) -> None:
    """File names of a gated repository are public; that its files are not is found out by resolving already."""
    hub.add("acme/gated", FILES, gated=True)
    with pytest.raises(SourceDenied, match="gated, and no token"):
        resolved_from(hub, "hf://acme/gated")
    with pytest.raises(SourceDenied, match="has no access"):
        resolved_from(hub, "hf://acme/gated", SourceCredential("hf_other", "test"))
    _, found = resolved_from(hub, "hf://acme/gated", SourceCredential(hub.token, "test"))
    assert len(found.resolved.files) == 2


def test_no_credential_means_that_none_is_sent(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token in its usual place stays there unless the caller hands it over."""
    monkeypatch.setenv("HF_TOKEN", hub.token)
    mirrored(hub, tmp_path)
    assert hub.seen
    assert not [seen for seen in hub.seen if "Authorization" in seen.headers]


def test_the_token_does_not_follow_a_redirect_to_another_host(hub: Hub, tmp_path: Path) -> None:
    """The Hub gets the token, the store it redirects to does not, and the content is whole."""
    with serve(hub):
        credential = SourceCredential(hub.token, "test")
        source, found = resolved_from(hub, credential=credential)
        mirror = mirror_at(tmp_path, CHUNK)
        listing = ingest(mirror, found.resolved, source, credential=credential)
    assert contents(mirror, listing) == FILES
    own = [seen for seen in hub.seen if f"http://{seen.host}" == hub.url]
    other = [seen for seen in hub.seen if f"http://{seen.host}" == hub.cdn]
    assert all(seen.headers.get("Authorization") == f"Bearer {hub.token}" for seen in own)
    assert other
    assert not [seen for seen in other if "Authorization" in seen.headers]


def test_the_token_does_not_follow_a_page_on_another_host(hub: Hub) -> None:
    """A list that continues on another host is not given the token there."""
    hub.page_size = 1
    with serve(hub):
        hub.url, ours = str(hub.cdn), hub.url
        source = HubSource(ours)
        found = source.resolve("hf://acme/model", None, SourceCredential(hub.token, "test"))
    assert len(found.files) == 2
    other = [seen for seen in hub.seen if f"http://{seen.host}" == hub.cdn]
    assert other
    assert not [seen for seen in other if "Authorization" in seen.headers]


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/cron.d/evil", "a//b", "a/../../b", "new\nline", "esc\x1b[2J", "nul\x00", "a\\b",
     "x" * 256, ".", "a/./b"],
)  # fmt: skip
def test_a_hostile_name_takes_nothing_of_the_source(hub: Hub, tmp_path: Path, name: str) -> None:
    """A name that could leave its place or a line is refused while planning, shown escaped; ignoring it helps."""
    hub.add("acme/evil", {"config.json": b"{}", name: b"x"})
    with pytest.raises(SourceError, match="hf://acme/evil") as caught:
        resolved_from(hub, "hf://acme/evil")
    assert not any(ord(letter) < 32 and letter != "\n" for letter in str(caught.value))
    assert "\n" not in caught.value.summary
    source = HubSource(hub.url)
    wanted = SourceRequest("hf://acme/evil", tmp_path, allow=("config.json",))
    found = resolve(wanted, open_source=lambda scheme: source)
    assert [file.path for file in found.resolved.files] == ["config.json"]


def test_cancelling_stops_soon_and_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    """Cancelled while upstream is silent, the call returns without waiting for it and can be carried on."""
    hub.faults = [HttpFault("silent", "model.safetensors", at=3 * CHUNK)]
    source = HubSource(hub.url, read_timeout=60)
    found = source.resolve("hf://acme/model", None, None)
    mirror = mirror_at(tmp_path, CHUNK)
    cancelled = threading.Event()

    def progress(done: int, total: int, files: int) -> None:
        if done >= 2 * CHUNK:
            cancelled.set()

    with pytest.raises(UserInterrupt):
        ingest(mirror, found, source, progress=progress, cancelled=cancelled)
    hub.closing.set()
    listing = ingest(mirror, found, source)
    assert contents(mirror, listing) == FILES


def test_an_error_amid_a_transfer_is_only_a_pause(hub: Hub, tmp_path: Path) -> None:
    """A cut, then 500 and 429 to who asks for the rest: it is asked for until it comes, and nothing twice."""
    hub.faults = [
        HttpFault("cut", "model.safetensors", at=2_500_000),
        HttpFault("status", "model.safetensors", status=500),
        HttpFault("status", "model.safetensors", status=429, headers={"Retry-After": "0"}),
    ]
    mirror, listing = mirrored(hub, tmp_path, attempts=5)

    assert contents(mirror, listing) == FILES
    asked = [seen.headers.get("Range") for seen in hub.asked("model.safetensors")]
    assert asked == [None, *["bytes=2500000-"] * 3]


def test_a_dataset_is_mirrored_like_a_model(hub: Hub, tmp_path: Path) -> None:
    """Its own addresses, with large and small files, and none of a model that has the same name."""
    files = {"train/0.bin": FILES["model.safetensors"], "README.md": b"rows"}
    hub.add("acme/model", files, dataset=True)
    source, found = resolved_from(hub, "hf://datasets/acme/model")
    mirror = mirror_at(tmp_path, CHUNK)
    listing = ingest(mirror, found.resolved, source)

    assert contents(mirror, listing) == files
    assert all("/datasets/acme/model/" in seen.path for seen in hub.seen)


def test_names_that_are_only_unusual_are_kept_apart(hub: Hub, tmp_path: Path) -> None:
    """The longest there can be, two that differ by case, two by how an accent is written: all come, under their own names."""
    names = [
        "a" * 255,
        "File.txt",
        "file.txt",
        "caf\u00e9",
        "cafe\u0301",
        " spaced ",
        "-rf",
        "50%20off",
    ]
    files = {f"x/{name}": name.encode() for name in names}
    hub.add("acme/odd", files)
    source, found = resolved_from(hub, "hf://acme/odd")
    mirror = mirror_at(tmp_path, CHUNK)
    listing = ingest(mirror, found.resolved, source)

    assert contents(mirror, listing) == files
