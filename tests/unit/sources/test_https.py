"""What an https source makes of what web servers say: identity, length, redirects, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import by_text, cases
from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import HttpFault
from tests.support.servers.web_server import (
    MODIFIED,
    NOTHING,
    STRONG,
    WEAK,
    WebPage,
    WebServer,
    serve_web,
)
from trainctl.base.listing import UNKNOWN_SIZE, ResolvedSource, SourceFile
from trainctl.errors import SourceError, SourceMismatch, SourceUnavailable
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.https import HttpsSource
from trainctl.weights.lock import LockEntry
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


@pytest.mark.parametrize("case", cases("sources/https_validators"))
def test_the_validator_comes_from_the_headers(web: WebServer, case: dict[str, Any]) -> None:
    """ETag before Last-Modified before the size; a single HEAD is enough."""
    web.tells = case.get("server", STRONG)
    web.change("/w.bin", case.get("headers", {}))
    file = only(web)
    assert (file.path, file.size) == ("w.bin", 1000)
    assert file.validator.startswith(case["validator"])
    assert file.identified is not case["validator"].startswith("size:")
    assert web.asked == ["HEAD /w.bin"]


@pytest.mark.parametrize("status", [400, 403, 405, 501])
def test_a_server_without_head_is_asked_for_one_byte(web: WebServer, status: int) -> None:
    file = only(web)
    web.head = status
    web.forget()
    assert only(web) == file
    assert web.asked == ["HEAD /w.bin", "GET /w.bin"]
    assert web.seen[-1].headers["Range"] == "bytes=0-0"
    web.ranges = False
    assert only(web) == file


def test_an_empty_file_is_a_file(web: WebServer) -> None:
    web.put("/empty", b"")
    assert only(web, "/empty").size == 0
    web.head = 405
    assert body(web, only(web, "/empty"), path="/empty") == b""


def test_a_size_is_needed_to_plan_but_not_to_read(web: WebServer) -> None:
    file = only(web)
    web.tells_length = False
    assert body(web, file) == CONTENT
    assert body(web, file, 990) == CONTENT[990:]
    with pytest.raises(SourceError, match="doesn't report the size of the file") as caught:
        only(web)
    assert "Declare its sha256" in caught.value.detail
    declared = only(web, revision=f"sha256:{DIGEST}")
    assert declared.size == UNKNOWN_SIZE
    assert body(web, declared) == CONTENT


@pytest.mark.parametrize(("status", "kind"), [(202, SourceUnavailable), (203, SourceError)])
def test_only_200_is_a_file(web: WebServer, status: int, kind: type[SourceError]) -> None:
    """What comes later may be the file, what was changed on the way isn't; the digest doesn't help."""
    web.head = 405
    web.faults = [HttpFault("status", "/w.bin", 99, status=status, headers={"Retry-After": "9"})]
    with pytest.raises(kind, match=f"\\({status}\\)") as caught:
        only(web, revision=f"sha256:{DIGEST}")
    assert getattr(caught.value, "retry_after", 9) == 9


@pytest.mark.parametrize(("header", "name"), by_text("sources/file_names"))
def test_the_name_is_that_of_the_server_or_the_manifest(
    web: WebServer, header: str, name: str
) -> None:
    web.change("/w.bin", {"Content-Disposition": header})
    request = SourceRequest(WeightsSpec(f"{web.url}/w.bin"), Path("/"))
    named = replace(request, weights=replace(request.weights, name="mine.bin"))
    assert [resolve(item).resolved.files[0].path for item in (request, named)] == [name, "mine.bin"]
    assert resolve(named).entry.key == named.key != request.key


def test_a_declared_sha256_is_the_identity(web: WebServer) -> None:
    """Whatever the server tells, then or later: the content itself is what counts."""
    revision = f"sha256:{DIGEST}"
    first = only(web, revision=revision)
    web.change("/w.bin", {"ETag": '"other"'})
    assert only(web, revision=revision) == first == SourceFile("w.bin", 1000, revision)
    assert body(web, first) == CONTENT


@pytest.mark.parametrize("tells", [STRONG, WEAK, MODIFIED])
def test_content_that_changed_is_refused(web: WebServer, tells: str) -> None:
    """The error has both validators, and both sizes if they differ."""
    web.tells = tells
    file = only(web)
    web.put("/w.bin", CONTENT[::-1])
    label = "Last-Modified " if tells == MODIFIED else "ETag "
    before, now = (label + value.validator.partition(":")[2] for value in (file, only(web)))
    for offset in (0, 500):
        with pytest.raises(SourceMismatch) as caught:
            body(web, file, offset)
        assert f"({before} before, {now} now)" in caught.value.summary
    web.pages["/w.bin"] = WebPage(CONTENT + b"more", 2)
    with pytest.raises(SourceMismatch, match="; 1000 bytes before, 1004 now") as caught:
        body(web, file)
    assert "Plan and apply again" in caught.value.detail


def test_without_a_validator_the_size_must_be_the_same(web: WebServer) -> None:
    web.tells = NOTHING
    file = only(web)
    assert body(web, file) == CONTENT
    web.put("/w.bin", b"short")
    with pytest.raises(SourceMismatch, match="5 bytes, expected 1000"):
        body(web, file)
    web.tells = STRONG
    with pytest.raises(SourceMismatch, match="neither ETag nor Last-Modified before, ETag"):
        body(web, file)


@pytest.mark.parametrize(
    ("tells", "ranged", "conditional"),
    [(STRONG, True, True), (WEAK, True, False), (MODIFIED, True, False), (NOTHING, False, False)],
)
def test_only_a_strong_tag_is_a_condition(
    web: WebServer, tells: str, ranged: bool, conditional: bool
) -> None:
    """Others are compared in the response; a file without a validator is read from its start."""
    web.tells = tells
    file = only(web)
    assert body(web, file, 990) == CONTENT[990:]
    headers = web.seen[-1].headers
    assert headers.get("Range") == ("bytes=990-" if ranged else None)
    tag = file.validator.removeprefix("etag:")
    assert headers.get("If-Range") == (tag if conditional else None)
    if conditional:  # proxies weaken tags without changing content
        web.tells = WEAK
        assert body(web, file) == CONTENT


def test_a_compressed_response_is_refused(web: WebServer) -> None:
    file = only(web)
    web.change("/w.bin", {"Content-Encoding": "gzip"})
    for act in (lambda: only(web), lambda: body(web, file)):
        with pytest.raises(SourceError, match=r"request not to compress \('gzip'\)"):
            act()
    assert all(request.headers["Accept-Encoding"] == "identity" for request in web.seen)
    assert only(web, revision=f"sha256:{DIGEST}").size == 1000
    web.change("/w.bin", {"Content-Encoding": "identity"})
    assert only(web) == file
    web.put("/w.tar.gz", CONTENT)
    web.change("/w.tar.gz", {"Content-Encoding": "x-gzip"})
    assert body(web, only(web, "/w.tar.gz"), path="/w.tar.gz") == CONTENT


def test_a_web_page_is_refused(web: WebServer) -> None:
    """Unless the source names one, or declares a digest."""
    web.put("/page.html", CONTENT)
    for path in ("/page.html", "/w.bin"):
        web.change(path, {"Content-Type": "text/html; charset=utf-8"})
    assert only(web, "/page.html").size == 1000
    assert only(web, revision=f"sha256:{DIGEST}").size == 1000
    with pytest.raises(SourceError, match="returned a web page") as caught:
        only(web)
    assert "declare its sha256" in caught.value.detail


def test_a_redirect_to_another_host_carries_no_credential(web: WebServer) -> None:
    web.put("/closed/w.bin", CONTENT)
    web.put("/w2.bin", CONTENT)
    web.redirects = {"/away": web.url.replace("127.0.0.1", "localhost") + "/back",
                     "/back": web.url + "/w2.bin"}  # fmt: skip
    credential = SourceCredential(web.token, "test")
    HttpsSource().resolve(f"{web.url}/closed/w.bin", None, credential)
    HttpsSource().resolve(f"{web.url}/away", None, credential)
    sent = {request.path: request.headers.get("Authorization") for request in web.seen}
    bearer = f"Bearer {web.token}"
    assert sent == {"/closed/w.bin": bearer, "/away": bearer, "/back": None, "/w2.bin": None}


def test_an_unidentified_file_is_a_warning_and_a_digest_overrides_the_lock(web: WebServer) -> None:
    """A manifest that no longer declares the digest keeps what is locked."""

    def resolution(sha256: str | None = None, locked: LockEntry | None = None) -> Resolution:
        return resolve(
            SourceRequest(WeightsSpec(f"{web.url}/w.bin", sha256=sha256), Path("/")), locked=locked
        )

    identified, declared = resolution().entry, resolution(DIGEST).entry
    assert resolution(DIGEST, identified).entry == declared
    assert resolution(None, declared).entry == declared
    web.tells = NOTHING
    (warning,) = resolution().warnings
    assert warning.summary.endswith("reports neither ETag nor Last-Modified")
    assert "Declare a sha256" in warning.detail
    assert resolution(DIGEST).warnings == ()
