"""Answers that make no sense are errors of their source, whatever they hold: none ends a command as if it were our mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from tests.support.storage.mirrors import MemorySource, immediate_retry
from trainctl.base.http import Headers
from trainctl.base.http.limits import LIMITS, retry_after
from trainctl.errors import SourceError
from trainctl.plugin_api.sources import SourceCredential, WeightSource
from trainctl.sources import hf, source_for
from trainctl.sources.headers import validator_of
from trainctl.sources.hf import HubSource, parse_size_field
from trainctl.weights.resolution import SourceRequest, resolve

COMMIT = "a" * 40
DEEP = "[" * 200_000
ROW = {"type": "file", "path": "x", "size": 4, "oid": COMMIT}
INFO = raw_response(json.dumps({"sha": COMMIT}))
HUGE = "9" * 5000
MOST = 10_000
"""Bytes of an answer, where a test says so."""
NO_SIZES = [-5, "-5", True, None, 4.5, [], 2**63, 10**30, "9" * 30, HUGE, "²", "0x4", ""]


@pytest.fixture(autouse=True)
def _open_gates() -> Iterator[None]:
    LIMITS.clear()
    yield
    LIMITS.clear()


def asked(uri: str, place: Path, *answers: bytes) -> SourceError:
    """What it comes to where its server answers so, the last answer for ever."""
    left = list(answers)

    def tell(heard: RawRequest) -> bytes:
        if heard.method == "HEAD":
            return raw_response(status="404 Not Found")
        return left.pop(0) if len(left) > 1 else left[0]

    with serve_responses(tell) as liar:
        scheme = uri.partition(":")[0]
        source: WeightSource = HubSource(liar.url) if scheme == "hf" else source_for(scheme)
        nobody = None if scheme == "hf" else SourceCredential("", "nobody", liar.url)
        with pytest.raises(SourceError) as caught:
            resolve(
                SourceRequest(uri, place),
                nobody,
                retry=immediate_retry(),
                open_source=lambda scheme: source,
            )
    return caught.value


@pytest.mark.parametrize(
    "link",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "javascript:alert(1)",
        "http://127.0.0.1:99999/",
        "http://[zz/",
        "http://:80/",
    ],
)
def test_a_link_that_leads_nowhere_is_an_error(link: str, tmp_path: Path) -> None:
    """A Hub's next page is looked at like a redirect, and nothing else is opened."""
    page = raw_response(json.dumps([ROW]), Link=f'<{link}>; rel="next"')

    assert asked("hf://acme/model", tmp_path, INFO, page).code == "unsafe-redirect"


def test_a_link_is_quoted_before_it_is_asked_for(tmp_path: Path) -> None:
    """As a redirect is."""
    page = raw_response(json.dumps([ROW]), Link='</api/a page>; rel="next"')

    found = asked("hf://acme/model", tmp_path, INFO, page, raw_response(status="404 Not Found"))

    assert found.code == "source-not-found"


@pytest.mark.parametrize(
    ("uri", "answers"),
    [
        ("hf://acme/model", [raw_response(DEEP)]),
        ("hf://acme/model", [INFO, raw_response(DEEP)]),
        ("hf://acme/model", [INFO, raw_response("5")]),
        ("hf://acme/model", [raw_response("{}", Content_Length=HUGE)]),
        ("hf://acme/model", [raw_response("{}", Content_Length="-5")]),
        ("s3://box/llm", [raw_response('<?xml version="1.0" encoding="foo-bar"?><a/>')]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_an_answer_that_makes_no_sense_is_an_error_of_its_source(
    uri: str, answers: list[bytes], tmp_path: Path
) -> None:
    """It names the source, and is none of ours."""
    assert uri in asked(uri, tmp_path, *answers).summary


@pytest.mark.parametrize("size", NO_SIZES, ids=lambda one: str(one)[:9])
def test_a_size_that_no_file_has_is_an_error(size: object, tmp_path: Path) -> None:
    """Of every source; none is planned with."""
    row = json.dumps([{**ROW, "size": size}])

    assert (
        asked("hf://acme/model", tmp_path, INFO, raw_response(row)).code == "invalid-hub-response"
    )
    with pytest.raises(ValueError, match="size"):
        parse_size_field(size)


def test_an_answer_without_end_is_not_read_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever length it tells, or none; no more of it is in memory than a page may have."""
    monkeypatch.setattr(hf, "_MAX_RESPONSE_BYTES", MOST)
    packets = b"ff\r\n" + b" " * 255 + b"\r\n"
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + packets * MOST

    for answer in (raw_response(" " * (MOST + 1)), endless):
        assert (
            f"longer than {MOST} bytes" in asked("hf://acme/model", tmp_path, INFO, answer).summary
        )


def test_sizes_are_numbers_or_their_digits() -> None:
    """Up to what a disk may hold."""
    assert [parse_size_field(one) for one in (0, "0", 4, "007", 2**63 - 1)] == [
        0,
        0,
        4,
        7,
        2**63 - 1,
    ]


@pytest.mark.parametrize("error", [KeyError("x"), TypeError(), RecursionError(), OverflowError()])
def test_whatever_else_a_source_stumbles_over_is_its_own_error(
    error: Exception, tmp_path: Path
) -> None:
    """One that nobody has thought of yet stops this source, and no other."""

    class Stumbling(MemorySource):
        def resolve(self, uri, revision, credential):  # type: ignore[no-untyped-def]
            raise error

    with pytest.raises(SourceError, match="unexpected response") as caught:
        resolve(
            SourceRequest("hf://acme/model", tmp_path), open_source=lambda scheme: Stumbling({})
        )
    assert caught.value.__cause__ is error


def test_headers_that_make_no_sense_are_none() -> None:
    """A wait without end is a long one, and a time beyond all times is none."""
    assert retry_after(Headers({"retry-after": "9" * 400})) == 1e9
    far = "Fri, 31 Dec 9999 23:59:59 -2300"
    assert retry_after(Headers({"retry-after": "Mon, 01 Jan 2024 00:00:00 +" + "9" * 30})) is None
    assert retry_after(Headers({"retry-after": far, "date": far})) == 0
    assert validator_of(Headers({"last-modified": far}), 4) == "size:4"
