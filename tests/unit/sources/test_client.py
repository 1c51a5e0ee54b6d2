"""Ranges of responses, redirects with credentials, and faults of servers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.auth.crypt import RSASigner

from tests.support.servers.buckets import KEY_ID, SECRET
from tests.support.servers.clouds import service_account
from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.servers.raw_server import RawRequest, RawServer, raw_response, serve_responses
from tests.support.storage.mirrors import MemorySource, immediate_retry
from trainctl import errors
from trainctl.base.checkpoints.stores import open_checkpoint_store
from trainctl.base.http.limits import LIMITS
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.buckets.bucket import Bucket
from trainctl.buckets.location import parse_bucket_location
from trainctl.buckets.logins import azure_token, federated_token, identity_token
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import ByteRange, SourceCredential, WeightSource
from trainctl.sources import hf, source_for
from trainctl.sources.bucket import BucketSource
from trainctl.sources.hf import HubSource, parse_size_field
from trainctl.sources.https import HttpsSource
from trainctl.weights.resolution import Resolution, SourceRequest, resolve

CONTENT = bytes(range(100))
FILE = SourceFile("x", len(CONTENT), 'etag:"e"')


def part(first: int, last: int, status: str = "206 Partial Content") -> bytes:
    content_range = f"bytes {first}-{last}/{len(CONTENT)}"
    body = CONTENT[first : last + 1]
    return raw_response(body, status, Content_Range=content_range, ETag='"e"')


UNNAMED = raw_response(CONTENT[:80], "206 Partial Content", ETag='"e"')


def rest(response: bytes, offset: int) -> bytes:
    """The file from that offset, if the server sends this response."""
    with serve_responses(lambda request: response) as server:
        resolved = ResolvedSource(f"{server.url}/x", "", ())
        with HttpsSource().open(resolved, FILE, offset, None) as body:
            return b"".join(body)


def read_range(response: bytes, span: ByteRange) -> bytes | None:
    with serve_responses(lambda request: response) as server:
        resolved = ResolvedSource(f"{server.url}/x", "", ())
        with HttpsSource().read_range(resolved, FILE, span, None) as fill:
            if fill is None:
                return None
            data = bytearray(span.length)
            fill(memoryview(data))
            return bytes(data)


@pytest.mark.parametrize("response", [part(0, 79), part(10, 89), part(10, 89, "200 OK"), UNNAMED])
def test_the_rest_of_a_file_begins_at_the_offset(response: bytes) -> None:
    assert rest(part(20, 99), 20) == CONTENT[20:]
    with pytest.raises(errors.SourceInterrupted, match="a different range"):
        rest(response, 20)


@pytest.mark.parametrize(
    "response", [part(10, 39), part(20, 59), part(20, 39), raw_response(CONTENT, ETag='"e"')]
)
def test_a_range_is_the_requested_one(response: bytes) -> None:
    assert read_range(part(20, 49), ByteRange(20, 30)) == CONTENT[20:50]
    assert read_range(response, ByteRange(20, 30)) is None


def test_a_body_without_a_length_is_not_longer_than_the_file() -> None:
    head = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nTransfer-Encoding: chunked\r\n\r\n'
    with pytest.raises(errors.SourceMismatch, match="received more than"):
        rest(head + b"64\r\n" + CONTENT + b"\r\n1\r\n!\r\n0\r\n\r\n", 0)


COMMIT = "a" * 40
MAX_REQUESTS = 100
PAGE, PAGES = 3, 7
NAMES = [f"{number:02}.bin" for number in range(20)]
TIMEOUT = 0.4


@pytest.fixture(autouse=True)
def _no_pauses() -> Iterator[None]:
    LIMITS.clear()
    yield
    LIMITS.clear()


def resolved(
    source: WeightSource, uri: str, credential: SourceCredential | None = None
) -> Resolution:
    request = SourceRequest(WeightsSpec(uri), Path("/"))
    return resolve(request, credential, retry=immediate_retry(), open_source=lambda scheme: source)


def bucket_at(url: str) -> Bucket:
    location = parse_bucket_location("s3://box/llm", url, {})
    return Bucket(location, environ={}, read_timeout=TIMEOUT)


def hub_page(cursor: str) -> bytes:
    return raw_response(json.dumps([ROW]), Link=f'</api/tree/?cursor={cursor}>; rel="next"')


def s3_page(cursor: str) -> bytes:
    rest = "<Size>4</Size><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
    rows = "".join(f"<Contents><Key>llm/{n:03}</Key>{rest}</Contents>" for n in range(50))
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{cursor}</NextContinuationToken>"
    return raw_response(f"<ListBucketResult xmlns='s3'>{rows}{more}</ListBucketResult>")


@contextlib.contextmanager
def cyclic(page: Callable[[str], bytes], cycle: int) -> Iterator[RawServer]:
    """A server whose pages repeat the same cursors, as behind a proxy that ignores the query."""
    cursors = itertools.cycle([f"cursor{number}" for number in range(cycle)])

    def respond(request: RawRequest) -> bytes:
        if len(server.heard) > MAX_REQUESTS:
            return raw_response(status="404 Not Found")
        if "/revision/" in request.target:
            return raw_response(json.dumps({"sha": COMMIT}))
        return page(next(cursors))

    with serve_responses(respond) as server:
        yield server


@pytest.mark.parametrize("cycle", [1, 3])
def test_a_cyclic_listing_is_an_error(cycle: int) -> None:
    """For the Hub, for a source in a bucket, for the bucket itself, and for a node's checkpoints."""
    with (
        cyclic(hub_page, cycle) as server,
        pytest.raises(errors.SourceError, match=r"^hf://acme/model.*has no end"),
    ):
        resolved(HubSource(server.url), "hf://acme/model")
    with cyclic(s3_page, cycle) as server:
        nobody = SourceCredential("", "nobody", server.url)
        with pytest.raises(errors.SourceError, match=r"^s3://box/llm.*has no end"):
            resolved(source_for("s3"), "s3://box/llm", nobody)
    with cyclic(s3_page, cycle) as server, pytest.raises(errors.SourceError, match="has no end"):
        list(bucket_at(server.url).list())
    with cyclic(s3_page, cycle) as server:
        store = open_checkpoint_store({"url": "s3://box/llm", "endpoint_url": server.url}, {})
        with closing(store), pytest.raises(errors.TrainctlError, match="has no end"):
            list(store.list(""))


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A Hub that lists its files on seven pages."""
    with serve() as running:
        running.add("acme/model", dict.fromkeys(NAMES, b"1234"))
        running.page_size = PAGE
        yield running


def failing_pages(hub: Hub, failures: dict[str, int], fault: HttpFault) -> Counter[str]:
    """Fail each page as often as that; the requests by cursor."""
    requests: Counter[str] = Counter()

    def next_fault(path: str) -> HttpFault | None:
        if "/tree/" not in path:
            return None
        cursor = hub.seen[-1].query.partition("cursor=")[2]
        requests[cursor] += 1
        return fault if requests[cursor] <= failures.get(cursor, 0) else None

    hub.next_fault = next_fault  # type: ignore[method-assign]
    return requests


@pytest.mark.parametrize("status", [429, 502])
def test_a_listing_resumes_at_the_page_that_failed(hub: Hub, status: int) -> None:
    cursors = [str(number * PAGE) for number in range(1, PAGES)]
    fault = HttpFault("status", "", status=status, headers={"Retry-After": "1"})
    requests = failing_pages(hub, dict.fromkeys(cursors, 2), fault)
    result = resolved(HubSource(hub.url), "hf://acme/model").resolved
    assert [file.path for file in result.files] == NAMES
    assert requests == {"": 1, **dict.fromkeys(cursors, 3)}


HEAD = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nETag: "1"\r\n'
    b"Last-Modified: Sun, 22 Nov 2026 08:00:00 GMT\r\n\r\n"
)


def trickle(begin: bytes) -> contextlib.AbstractContextManager[RawServer]:
    """A server that sends these bytes, and then one every 20 ms."""

    def respond(request: RawRequest) -> Iterator[bytes]:
        yield begin
        for _ in range(1500):
            time.sleep(0.02)
            yield b"x"

    return serve_responses(respond)


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nX-Header: "])
def test_headers_that_trickle_in_are_a_timeout(begin: bytes) -> None:
    """They must be complete within the read timeout; a plan tries twice."""
    with trickle(begin) as server, pytest.raises(errors.SourceUnreachable, match="did not respond"):
        list(bucket_at(server.url).list())
    with trickle(begin) as server:
        source = BucketSource(read_timeout=TIMEOUT, environ={})
        with pytest.raises(errors.SourceUnreachable):
            resolved(source, "s3://box/llm", SourceCredential("", "nobody", server.url))
        assert len(server.heard) == 2


def test_a_body_that_trickles_in_is_interrupted() -> None:
    with trickle(HEAD) as server:
        with (
            bucket_at(server.url).open("w", size=10**6) as body,
            pytest.raises(errors.SourceInterrupted, match="is too slow"),
        ):
            list(body)
        with pytest.raises(errors.SourceInterrupted, match="is too slow"):
            bucket_at(server.url).get("w")


ROW = {"type": "file", "path": "x", "size": 4, "oid": COMMIT}
INFO = raw_response(json.dumps({"sha": COMMIT}))
CUT = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>llm/x</Key><Size>1</Size><LastModified>2026-01-01</LastModified></Contents>"
HUGE, DEEP = "9" * 5000, "[" * 200_000
INVALID_SIZES = [-5, "-5", True, None, 4.5, [], 2**63, 10**30, "9" * 30, HUGE, "²", "0x4", ""]


def error_of(uri: str, *responses: bytes) -> errors.SourceError:
    """The error of a source whose server sends these responses, the last one again and again."""
    left = list(responses)

    def respond(request: RawRequest) -> bytes:
        if request.method == "HEAD":
            return raw_response(status="404 Not Found")
        return left.pop(0) if len(left) > 1 else left[0]

    with serve_responses(respond) as server:
        is_hub = uri.startswith("hf:")
        source: WeightSource = HubSource(server.url) if is_hub else source_for("s3")
        nobody = None if is_hub else SourceCredential("", "nobody", server.url)
        with pytest.raises(errors.SourceError) as caught:
            resolved(source, uri, nobody)
    return caught.value


@pytest.mark.parametrize(
    "link", ["file:///etc/passwd", "ftp://h/x", "http://h:99999/", "http://[zz/", "http://:80/"]
)
def test_a_next_page_that_is_no_http_url_is_refused(link: str) -> None:
    page = raw_response(json.dumps([ROW]), Link=f'<{link}>; rel="next"')
    assert error_of("hf://acme/model", INFO, page).code == "unsafe-redirect"


@pytest.mark.parametrize(
    ("uri", "responses"),
    [
        ("hf://acme/model", [raw_response(DEEP)]),
        ("hf://acme/model", [INFO, raw_response(DEEP)]),
        ("hf://acme/model", [INFO, raw_response("5")]),
        ("hf://acme/model", [raw_response("{}", Content_Length=HUGE)]),
        ("hf://acme/model", [raw_response("{}", Content_Length="-5")]),
        ("s3://box/llm", [raw_response('<?xml version="1.0" encoding="foo-bar"?><a/>')]),
        ("s3://box/llm", [raw_response(CUT)]),
    ],
    ids=["deep info", "deep tree", "number", "huge length", "negative length", "encoding", "cut"],
)
def test_an_invalid_response_is_an_error_of_its_source(uri: str, responses: list[bytes]) -> None:
    assert uri in error_of(uri, *responses).summary


@pytest.mark.parametrize("size", INVALID_SIZES, ids=lambda size: str(size)[:9])
def test_an_invalid_size_is_an_error(size: object) -> None:
    row = raw_response(json.dumps([{**ROW, "size": size}]))
    assert error_of("hf://acme/model", INFO, row).code == "invalid-hub-response"
    assert [parse_size_field(size) for size in (0, "007", 2**63 - 1)] == [0, 7, 2**63 - 1]


def test_an_endless_response_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without a Content-Length, at most one page is in memory."""
    limit = 10_000
    monkeypatch.setattr(hf, "_MAX_RESPONSE_BYTES", limit)
    packets = b"ff\r\n" + b" " * 255 + b"\r\n"
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + packets * limit
    for response in (raw_response(" " * (limit + 1)), endless):
        error = error_of("hf://acme/model", INFO, response)
        assert f"longer than {limit} bytes" in error.summary


@pytest.mark.parametrize("error", [KeyError("x"), TypeError(), RecursionError(), OverflowError()])
def test_an_unexpected_exception_is_an_error_of_its_source(error: Exception) -> None:
    class Failing(MemorySource):
        def resolve(self, uri, revision, credential):  # type: ignore[no-untyped-def]
            raise error

    with pytest.raises(errors.SourceError, match="unexpected response") as caught:
        resolved(Failing({}), "hf://acme/model")
    assert caught.value.__cause__ is error


LISTED = "<ListBucketResult></ListBucketResult>"


@pytest.fixture
def elsewhere() -> Iterator[RawServer]:
    with serve_responses(lambda request: raw_response("{}")) as server:
        yield server


OPENED = {
    "s3://box/llm": {
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "aws_session_token": "a-session",
    },
    "azure://acme/box/llm": {"sas_token": "sv=2021-08-06&sig=the-signature"},
}


def opened(
    uri: str, url: str, secret: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> Bucket:
    credential = SourceCredential(json.dumps(secret), "the test")
    return Bucket(parse_bucket_location(uri, url, {}), credential, environ or {})


REQUESTS: list[Callable[[Bucket], object]] = [
    lambda bucket: list(bucket.list()),
    lambda bucket: bucket.stat("x"),
    lambda bucket: bucket.get("x"),
    lambda bucket: bucket.put("x", b"content"),
    lambda bucket: bucket.delete(["x"]),
]


@pytest.mark.parametrize("uri", OPENED)
def test_a_bucket_client_follows_no_redirect(elsewhere: RawServer, uri: str) -> None:
    """It would send S3's session and the shared signature along. The error names the redirecting host."""
    there = elsewhere.url.replace("127.0.0.1", "localhost")
    away = raw_response(status="307 Temporary Redirect", Location=there)
    with serve_responses(lambda request: away) as redirecting:
        bucket = opened(uri, redirecting.url, OPENED[uri])
        for send in REQUESTS:
            redirecting.heard.clear()
            host = redirecting.url[7:]
            with pytest.raises(errors.SourceError, match=rf"{host} redirects to another") as caught:
                send(bucket)
            assert len(redirecting.heard) == 1
            assert caught.value.code == "unsafe-redirect"
    assert elsewhere.heard == []


def test_a_service_principal_gets_its_token_from_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = json.dumps({"error": "invalid_client", "error_description": "The secret is invalid"})
    token = raw_response('{"access_token": "the-token", "expires_in": 3600}')
    answers = [token, token, raw_response(output, "401 Unauthorized")]
    with (
        serve_responses(lambda request: answers.pop()) as entra,
        serve_responses(lambda request: raw_response(LISTED)) as blobs,
    ):
        there = {"AZURE_AUTHORITY_HOST": entra.url.replace("127.0.0.1", "localhost")}
        monkeypatch.setenv(*there.popitem())
        principal = {"tenant_id": "tenant", "client_id": "client", "client_secret": SECRET}
        bucket = opened("azure://acme/box", blobs.url, principal, os.environ)
        with pytest.raises(
            errors.SourceError, match=r"by localhost:\d+ \(401\): The secret is invalid"
        ):
            list(bucket.list())
        with pytest.raises(errors.SourceError):
            bucket.get("x")
        assert list(bucket.list()) == list(bucket.list()) == []
    # one is obstore's
    assert [request.target for request in entra.heard] == ["/tenant/oauth2/v2.0/token"] * 3
    assert [request.headers["authorization"] for request in blobs.heard] == ["Bearer the-token"] * 3


def test_a_service_account_signs_its_own_token() -> None:
    account = service_account()
    with serve_responses(lambda request: raw_response(LISTED)) as google:
        assert list(opened("gs://box", google.url, account).list()) == []
    token = google.heard[0].headers["authorization"].split()[1]
    text, _, signature = token.rpartition(".")
    signer: Any = RSASigner.from_service_account_info(account)  # type: ignore[no-untyped-call]
    assert urlsafe_b64decode(f"{signature}==") == signer.sign(text)
    assert (
        json.loads(urlsafe_b64decode(f"{text.split('.')[1]}=="))["sub"] == account["client_email"]
    )


def test_token_requests_follow_no_redirect(
    elsewhere: RawServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchanged token, and those that open a machine's or a job's own, stay with their server."""
    (tmp_path / "token").write_text("the-identity")
    granted = {"access_token": "t", "issued_token_type": "t", "token_type": "t", "expires_in": 9}
    away = raw_response(status="302 Found", Location=f"{elsewhere.url}/there")
    with (
        serve_responses(lambda request: raw_response(json.dumps(granted))) as sts,
        serve_responses(lambda request: away) as redirecting,
    ):
        environ = {
            "GOOGLE_OIDC_TOKEN_FILE": str(tmp_path / "token"),
            "GOOGLE_STS_URL": sts.url,
            "GOOGLE_IAM_CREDENTIALS_URL": redirecting.url,
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{redirecting.url}/oidc?x=1",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "the-token",
            "IDENTITY_ENDPOINT": redirecting.url,
            "IDENTITY_HEADER": "the-header",
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(errors.SourceDenied):
            federated_token("projects/1/pool", "me@acme")
        with pytest.raises(errors.SourceDenied, match="302"):
            identity_token("us", "UNSET", environ)
        with pytest.raises(errors.SourceDenied):
            azure_token("this machine")
        paths = {request.target.partition("?")[0] for request in redirecting.heard}
        assert {"/oidc", "/"} < paths  # the third is Google's
    assert elsewhere.heard == []
