"""What an https source makes of what web servers say: identity, length, redirects, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.servers.certificate_authority import authority
from tests.support.servers.web_server import (
    MODIFIED,
    NOTHING,
    STRONG,
    WEAK,
    WebPage,
    WebServer,
    serve_web,
)
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import (
    SourceError,
    SourceMismatch,
)
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.https import HttpsSource
from trainctl.weights.resolution import Resolution, SourceRequest, resolve

CONTENT = b"0123456789" * 100
DIGEST = "ab" * 32


@pytest.fixture(autouse=True)
def _trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serve_web(authority().server) as running:
        running.put("/w.bin", CONTENT)
        yield running


def only(web: WebServer, path: str = "/w.bin", revision: str | None = None) -> SourceFile:
    (file,) = HttpsSource(read_timeout=5).resolve(web.url + path, revision, None).files
    return file


def body(web: WebServer, file: SourceFile, offset: int = 0, path: str = "/w.bin") -> bytes:
    resolved = ResolvedSource(web.url + path, "", (file,))
    with HttpsSource(read_timeout=5).open(resolved, file, offset, None) as pieces:
        return b"".join(pieces)


@pytest.mark.parametrize(
    ("tells", "validator"),
    [
        (STRONG, 'etag:"'),
        (WEAK, 'etag:W/"'),
        (MODIFIED, "modified:2025-01-06T10:01:00Z"),
        (NOTHING, "size:1000"),
    ],
)
def test_what_the_server_tells_is_the_validator(web: WebServer, tells: str, validator: str) -> None:
    """ETag before Last-Modified before the bare size; one HEAD is all that it takes."""
    web.tells = tells
    file = only(web)
    assert (file.path, file.size) == ("w.bin", 1000)
    assert file.validator.startswith(validator)
    assert file.identified is (tells != NOTHING)
    assert web.asked == ["HEAD /w.bin"]


@pytest.mark.parametrize("case", cases("sources/https_validators"))
def test_unusual_headers_identify_as_far_as_they_can(web: WebServer, case: dict[str, Any]) -> None:
    """A malformed, empty or too long ETag is ignored; dates count in every form of HTTP."""
    web.change("/w.bin", case["headers"])
    assert only(web).validator == case["validator"]


@pytest.mark.parametrize("status", [400, 403, 405, 501])
def test_a_server_without_head_is_asked_for_one_byte(web: WebServer, status: int) -> None:
    """Whoever refuses HEAD is asked with GET for the first byte, and tells the same."""
    told = only(web)
    web.head = status
    web.forget()
    assert only(web) == told
    assert web.asked == ["HEAD /w.bin", "GET /w.bin"]
    assert web.seen[-1].headers["Range"] == "bytes=0-0"
    web.ranges = False
    assert only(web) == told


def test_an_empty_file_is_a_file(web: WebServer) -> None:
    """Nothing is what it holds, also where HEAD is refused and no byte can be asked for."""
    web.put("/empty", b"")
    assert only(web, "/empty").size == 0
    web.head = 405
    assert body(web, only(web, "/empty"), path="/empty") == b""


def test_a_length_that_is_not_told_is_an_error(web: WebServer) -> None:
    """Without one nothing can be planned; the error says what to do."""
    web.tells_length = False
    with pytest.raises(SourceError, match="doesn't report the size of the file") as caught:
        only(web)
    assert "file:///PATH" in caught.value.detail


def test_a_body_without_a_length_is_counted(web: WebServer) -> None:
    """A server that tells the length at first and then sends chunks is held to it."""
    file = only(web)
    web.tells_length = False
    assert body(web, file) == CONTENT
    assert body(web, file, 990) == CONTENT[990:]


def test_a_declared_sha256_is_the_identity(web: WebServer) -> None:
    """Whatever the server tells, then or later: the content itself is what counts."""
    revision = f"sha256:{DIGEST}"
    first = only(web, revision=revision)
    web.change("/w.bin", {"ETag": '"other"'})
    assert only(web, revision=revision) == first == SourceFile("w.bin", 1000, revision)
    assert body(web, first) == CONTENT


@pytest.mark.parametrize("offset", [0, 500])
@pytest.mark.parametrize("tells", [STRONG, WEAK, MODIFIED])
def test_content_that_changed_is_refused(web: WebServer, tells: str, offset: int) -> None:
    """The error has both validators, and both sizes if they differ."""
    web.tells = tells
    file = only(web)
    web.put("/w.bin", CONTENT[::-1])
    with pytest.raises(SourceMismatch) as caught:
        body(web, file, offset)
    label = "Last-Modified " if tells == MODIFIED else "ETag "
    before, now = (label + one.validator.partition(":")[2] for one in (file, only(web)))
    assert f"({before} before, {now} now)" in caught.value.summary
    web.pages["/w.bin"] = WebPage(CONTENT + b"more", 2)
    with pytest.raises(SourceMismatch, match="; 1000 bytes before, 1004 now") as caught:
        body(web, file, offset)
    assert "Plan and apply again" in caught.value.detail


def test_without_a_validator_the_size_must_be_the_same(web: WebServer) -> None:
    """It is all that is known: another one is refused, and a server that now tells more is another server."""
    web.tells = NOTHING
    file = only(web)
    assert body(web, file) == CONTENT
    web.put("/w.bin", b"short")
    with pytest.raises(SourceMismatch, match="5 bytes, expected 1000"):
        body(web, file)
    web.tells = STRONG
    with pytest.raises(SourceMismatch, match="neither ETag nor Last-Modified before, ETag"):
        body(web, file)


@pytest.mark.parametrize(("tells", "conditional"), [(STRONG, True), (WEAK, False), (MODIFIED, False)])  # fmt: skip
def test_only_a_strong_tag_is_a_condition(web: WebServer, tells: str, conditional: bool) -> None:
    """If-Range holds a strong ETag or isn't there; the others are compared in the answer."""
    web.tells = tells
    file = only(web)
    assert body(web, file, 990) == CONTENT[990:]
    asked = web.seen[-1].headers
    assert asked["Range"] == "bytes=990-"
    assert asked.get("If-Range") == (file.validator.removeprefix("etag:") if conditional else None)


def test_what_nothing_identifies_is_asked_for_from_the_start(web: WebServer) -> None:
    """The rest of it might be the rest of something else."""
    web.tells = NOTHING
    file = only(web)
    assert body(web, file, 990) == CONTENT[990:]
    assert "Range" not in web.seen[-1].headers


def test_a_tag_weakened_on_the_way_is_the_same(web: WebServer) -> None:
    """Proxies weaken tags without changing content."""
    file = only(web)
    web.tells = WEAK
    assert body(web, file) == CONTENT


def test_what_comes_compressed_is_refused(web: WebServer) -> None:
    """The bytes as they are were asked for; packed ones are neither kept nor unpacked."""
    file = only(web)
    web.change("/w.bin", {"Content-Encoding": "gzip"})
    for act in (lambda: only(web), lambda: body(web, file)):
        with pytest.raises(SourceError, match=r"request not to compress \('gzip'\)"):
            act()
    assert all(one.headers["Accept-Encoding"] == "identity" for one in web.seen)
    web.change("/w.bin", {"Content-Encoding": "identity"})
    assert only(web) == file


def test_a_web_page_is_no_file(web: WebServer) -> None:
    """A login or download page in the place of weights is refused, unless it is what was asked for."""
    web.put("/page.html", CONTENT)
    for path in ("/page.html", "/w.bin"):
        web.change(path, {"Content-Type": "text/html; charset=utf-8"})
    assert only(web, "/page.html").size == 1000
    assert only(web, revision=f"sha256:{DIGEST}").size == 1000
    with pytest.raises(SourceError, match="returned a web page") as caught:
        only(web)
    assert "declare its sha256" in caught.value.detail


def test_redirects_are_followed(web: WebServer) -> None:
    """Relative and absolute, to another host too, with spaces and umlauts in them; the name stays the source's own."""
    other = web.url.replace("127.0.0.1", "localhost")
    web.put("/deep/ä b.bin", CONTENT)
    web.redirects = {
        "/a/latest.bin": "../b",
        "/b": f"{other}/c?x=1",
        "/c": "/deep/ä b.bin".encode().decode("latin-1"),
    }
    file = only(web, "/a/latest.bin")
    assert (file.path, file.size) == ("latest.bin", 1000)
    assert body(web, file, path="/a/latest.bin") == CONTENT
    assert {one.host.partition(":")[0] for one in web.seen} == {"127.0.0.1", "localhost"}


def test_a_redirect_to_another_host_carries_no_credential(web: WebServer) -> None:
    """The token goes to the source's own host and port, and never to where that sends us."""
    web.put("/closed/w.bin", CONTENT)
    web.put("/w2.bin", CONTENT)
    web.redirects = {"/away": web.url.replace("127.0.0.1", "localhost") + "/back",
                     "/back": web.url + "/w2.bin"}  # fmt: skip
    credential = SourceCredential(web.token, "test")
    HttpsSource().resolve(f"{web.url}/closed/w.bin", None, credential)
    HttpsSource().resolve(f"{web.url}/away", None, credential)
    sent = {one.path: one.headers.get("Authorization") for one in web.seen}
    bearer = f"Bearer {web.token}"
    assert sent == {"/closed/w.bin": bearer, "/away": bearer, "/back": None, "/w2.bin": None}


def resolution(web: WebServer, **more: object) -> Resolution:
    wanted = SourceRequest(f"{web.url}/w.bin", Path("/"), sha256=more.pop("sha256", None))  # type: ignore[arg-type]
    return resolve(wanted, **more)  # type: ignore[arg-type]


def test_a_file_that_nothing_identifies_is_a_warning(web: WebServer) -> None:
    """Changes of the same size can't be noticed: said, with what to do; a declared digest is enough."""
    web.tells = NOTHING
    (warning,) = resolution(web).warnings
    assert warning.summary.endswith("reports neither ETag nor Last-Modified")
    assert "Declare a sha256" in warning.detail
    assert resolution(web, sha256=DIGEST).warnings == ()


def test_a_declared_digest_goes_before_the_lock(web: WebServer) -> None:
    """A manifest that declares another content than is locked is right; one that stops declaring it leaves it locked."""
    told, declared = resolution(web).entry, resolution(web, sha256=DIGEST).entry
    assert resolution(web, sha256=DIGEST, locked=told).entry == declared
    assert resolution(web, locked=declared).entry == declared


def test_a_lock_entry_that_can_not_be_is_not_followed_blindly(web: WebServer) -> None:
    """An entry whose pin is not that of its own revision was changed by hand: nothing is made up from it."""
    entry = resolution(web).entry
    broken = type(entry)(
        entry.source, None, None, 'etag:"other"', "sha256:" + "0" * 64, 1, entry.bytes + 1
    )
    with pytest.raises(SourceMismatch, match=r"pinned in trainctl\.lock is no longer available"):
        resolution(web, locked=broken)
