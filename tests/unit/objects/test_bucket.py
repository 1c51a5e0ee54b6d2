"""Faults of a bucket's server, and credentials that expire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.servers.buckets import KEY_ID, SECRET, moto
from tests.support.servers.certificate_authority import authority
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceNotFound,
    SourceUnavailable,
    SourceUnreachable,
)
from trainctl.objects.bucket_client import Bucket
from trainctl.objects.credentials import AwsKeys
from trainctl.objects.errors import WrongRegion
from trainctl.objects.location import parse_bucket_location

pytestmark = pytest.mark.integration

EMPTY = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated></ListBucketResult>'


class Server(ThreadingHTTPServer):
    """Responds to each GET with status, body and announced length; delays a PUT by ``pause`` seconds."""

    daemon_threads = True
    answer: Callable[[BaseHTTPRequestHandler], tuple[int, bytes, int]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[str] = []
        self.released = threading.Event()
        self.pause: float | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("Authorization") or "")
        self._respond(*self.server.answer(self))

    def do_PUT(self) -> None:
        if self.server.pause is None:
            self.send_error(501)
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.released.wait(self.server.pause)
        self._respond(200, b"", 0)

    def _respond(self, status: int, body: bytes, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 08:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.released.set()
        running.shutdown()


def bucket(url: str, key_id: str = KEY_ID, **more: object) -> Bucket:
    place = parse_bucket_location("s3://models/a", url, {})
    return Bucket(place, AwsKeys(key_id, SECRET), "secret keys", environ={}, **more)  # type: ignore[arg-type]


def refusal(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", SourceUnavailable),
        (500, "InternalError", SourceUnavailable),
        (403, "AccessDenied", SourceDenied),
        (403, "InvalidAccessKeyId", SourceDenied),
        (404, "NoSuchBucket", SourceNotFound),
        (400, "AuthorizationHeaderMalformed", WrongRegion),
        (418, "Teapot", SourceError),
    ],
)
def test_a_refusal_is_reported_by_its_code_and_not_retried(
    server: Server, status: int, code: str, kind: type[SourceError]
) -> None:
    """The kind says whether a retry may help; the server's message is not repeated."""
    server.answer = lambda _: (status, refusal(code), len(refusal(code)))
    with pytest.raises(kind) as caught:
        list(bucket(server.url).list())
    assert type(caught.value) is kind
    assert code in caught.value.summary
    assert caught.value.summary.startswith("s3://models/a: ")
    assert SECRET not in str(caught.value)
    assert len(server.seen) == 1


def test_an_expired_credential_is_renewed_once(server: Server) -> None:
    """If the renewed credential has expired, too, that is the error."""
    old = refusal("ExpiredToken")

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes, int]:
        is_new = "=NEW/" in (request.headers.get("Authorization") or "")
        return (200, EMPTY, len(EMPTY)) if is_new else (400, old, len(old))

    server.answer = answer
    renewed = iter([AwsKeys("NEW", SECRET), AwsKeys("ALSO-OLD", SECRET)])
    assert list(bucket(server.url, "OLD", renew=lambda: next(renewed)).list()) == []
    assert len(server.seen) == 2
    with pytest.raises(SourceDenied, match="has expired") as caught:
        list(bucket(server.url, "OLD", renew=lambda: next(renewed)).list())
    assert caught.value.code == "expired-credential"
    assert len(server.seen) == 4
    with pytest.raises(SourceDenied, match="has expired"):
        list(bucket(server.url, "OLD").list())


def test_a_credential_is_renewed_before_it_ends(server: Server) -> None:
    server.answer = lambda _: (200, EMPTY, len(EMPTY))
    expires_at = datetime.now(UTC) + timedelta(seconds=20)
    place = parse_bucket_location("s3://models/a", server.url, {})
    first = AwsKeys("FIRST", SECRET, expires_at=expires_at)
    later = AwsKeys("LATER", SECRET, expires_at=expires_at + timedelta(hours=1))
    store = Bucket(place, first, "role", renew=lambda: later, environ={})
    for _ in range(3):
        list(store.list())
    assert ["LATER" in one for one in server.seen] == [True, True, True]


@pytest.mark.parametrize(
    "told",
    [
        b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-north-1</Region></Error>",
        b"<Error><Code>PermanentRedirect</Code><Endpoint>m.s3.eu-north-1.amazonaws.com</Endpoint></Error>",
    ],
)
def test_a_bucket_in_another_region_is_asked_there(server: Server, told: bytes) -> None:
    """Later requests are signed for the region that S3 reports; a server that reports none is an error."""

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes, int]:
        right = "/eu-north-1/" in (request.headers.get("Authorization") or "")
        return (200, EMPTY, len(EMPTY)) if right else (400, told, len(told))

    server.answer = answer
    store = bucket(server.url)
    assert [list(store.list()), list(store.list())] == [[], []]
    assert ["/eu-north-1/" in one for one in server.seen] == [False, True, True]
    silent = told.replace(b"eu-north-1", b"")
    server.answer = lambda _: (400, silent, len(silent))
    with pytest.raises(SourceError, match="is in another region") as caught:
        list(bucket(server.url).list())
    assert caught.value.code == "wrong-region"


def test_silence_and_a_body_that_ends_early_may_be_tried_again(server: Server) -> None:
    """Both are SourceInterrupted, with the object's name."""

    def silent(_: BaseHTTPRequestHandler) -> tuple[int, bytes, int]:
        server.released.wait(60)
        return 200, b"", 0

    server.answer = silent
    with pytest.raises(SourceInterrupted, match="timed out waiting for"):
        list(bucket(server.url, read_timeout=0.2).list())
    server.answer = lambda _: (200, b"12345", 10)
    with (
        pytest.raises(SourceInterrupted, match="s3://models/a: x"),
        bucket(server.url).open("x", size=10) as pieces,
    ):
        list(pieces)


def test_a_server_that_takes_much_slowly_is_not_silent(server: Server) -> None:
    """What is large may take longer to be sent than any other silence; what is small may not."""
    server.pause = 1.0
    store = bucket(server.url, read_timeout=0.2)
    store.put("large", bytes(2**20 + 1))
    with pytest.raises(SourceUnreachable):
        store.put("small", b"1")


def test_certificates_of_the_environment_are_trusted(server: Server) -> None:
    server.socket = authority().server.wrap_socket(server.socket, server_side=True)
    server.answer = lambda _: (200, EMPTY, len(EMPTY))
    secure = server.url.replace("http:", "https:")
    place = parse_bucket_location("s3://models/a", secure, {})
    with pytest.raises(SourceError) as caught:
        list(Bucket(place, environ={}).list())
    assert caught.value.code == "untrusted-certificate"
    trusting = {"REQUESTS_CA_BUNDLE": str(authority().certificates)}
    assert list(Bucket(place, environ=trusting).list()) == []
    usual = {"SSL_CERT_FILE": str(authority().certificates)}
    assert list(Bucket(place, environ=usual).list()) == []
    wrong = {"AWS_CA_BUNDLE": "/nowhere.pem"}
    with pytest.raises(SourceError, match="cannot read certificates from /nowhere"):
        Bucket(place, environ=wrong)


def test_a_proxy_of_the_environment_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = lambda _: (200, EMPTY, len(EMPTY))
    monkeypatch.setenv("http_proxy", server.url)
    assert list(bucket("http://store.invalid").list()) == []
    assert len(server.seen) == 1


def test_the_environment_neither_signs_nor_redirects(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a credential requests are unsigned, whatever the platform's variables contain."""
    server.answer = lambda _: (200, EMPTY, len(EMPTY))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "no base64")
    s3 = parse_bucket_location("s3://models/a", server.url, {})
    assert list(Bucket(s3, environ={}).list()) == []
    server.answer = lambda _: (404, b"", 0)
    azure = parse_bucket_location("azure://mine/models", server.url, {})
    assert Bucket(azure, environ={}).get("a") is None
    assert server.seen == ["", ""]


def test_objects_are_put_read_and_removed() -> None:
    """Whole or by range, under conditions, in parts; absence is None, and removing it is no error."""
    data = bytes(range(256)) * 5000
    with moto() as server:
        store = bucket(server.endpoint)
        store.put("deep/a b%20ü.bin", data)
        store.put("file", data * 9)
        store.put("empty", b"")
        with store.open("deep/a b%20ü.bin", 1000, 77, size=len(data)) as pieces:
            assert b"".join(pieces) == data[1000:1077]
        assert store.put_if_absent("lock", b"1")
        assert not store.put_if_absent("lock", b"2")
        assert (store.get("lock"), store.get("absent"), store.head("absent")) == (b"1", None, None)
        assert [one.key for one in store.list()] == ["deep/a b%20ü.bin", "empty", "file", "lock"]
        assert [one.key for one in store.list(after="file")] == ["lock"]
        assert (store.get("file"), store.get("empty")) == (data * 9, b"")
        assert [one.size for one in store.list("deep")] == [len(data)]
        store.delete("lock")
        store.delete("lock")
        assert store.get("lock") is None


def test_a_missing_bucket_is_not_an_existing_object() -> None:
    """Otherwise a lock would be awaited forever."""
    with moto() as server:
        gone = parse_bucket_location("s3://gone/a", server.endpoint, {})
        store = Bucket(gone, AwsKeys(KEY_ID, SECRET), "secret keys", environ={})
        with pytest.raises(SourceNotFound, match="bucket not found"):
            store.put_if_absent("lock", b"1")


@pytest.mark.parametrize("url", ["s3://models", "gs://models", "azure://account/models"])
def test_without_a_credential_no_metadata_server_is_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Its token would be sent to the bucket."""
    with Server() as metadata:
        threading.Thread(target=metadata.serve_forever, daemon=True).start()
        metadata.answer = lambda _: (200, b'{"access_token": "t", "expires_in": 3600}', 41)
        address = metadata.url.partition("//")[2]
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, address)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
        server.answer = lambda _: (403, b"", 0)
        bucket = Bucket(parse_bucket_location(url, server.url, {}), environ={})
        acts: list[Callable[[], object]] = [
            lambda: bucket.get("x"),
            lambda: bucket.put("x", b"1"),
            lambda: bucket.delete("x"),
        ]
        for act in acts:
            with pytest.raises(SourceError, match=r"403|501"):
                act()
        metadata.shutdown()
    assert metadata.seen == []
