"""Operations of buckets: faults of servers, credentials that expire, retries, presigned URLs."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from obstore.store import MemoryStore

from tests.support.cases import by_text
from tests.support.servers.bucket_stores import SERVERS, place_in
from tests.support.servers.buckets import KEY_ID, SECRET, moto
from tests.support.servers.certificate_authority import authority
from tests.support.servers.google_xml import GoogleXml
from tests.support.servers.hub import FaultyHandler, listen
from tests.support.servers.raw_server import RawRequest, RawServer, raw_response, serve_responses
from trainctl import errors
from trainctl.base.checkpoints.s3 import S3Client
from trainctl.base.parallel import each
from trainctl.base.retry import RetryPolicy
from trainctl.buckets import bucket as bucket_module
from trainctl.buckets import obstore_client
from trainctl.buckets.bucket import Bucket, BucketObjects
from trainctl.buckets.location import parse_bucket_location
from trainctl.buckets.metadata import ObjectInfo
from trainctl.buckets.obstore_client import WrongRegion
from trainctl.model.run import RunRecord
from trainctl.plugin_api.sources import SourceCredential
from trainctl.resources.checkpoints import CheckpointClient
from trainctl.secrets.bucket_credentials import CredentialCache

pytestmark = pytest.mark.integration

EMPTY = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated></ListBucketResult>'


@pytest.fixture
def answers() -> list[Callable[[RawRequest], bytes]]:
    """The last is how the server responds: with an empty bucket, unless a test adds another."""
    return [lambda request: raw_response(EMPTY)]


@pytest.fixture
def server(answers: list[Callable[[RawRequest], bytes]]) -> Iterator[RawServer]:
    with serve_responses(lambda request: answers[-1](request)) as running:
        yield running


def keys(key_id: str, *renewed: str) -> SourceCredential:
    """A key that is renewed by the others."""
    value = json.dumps({"aws_access_key_id": key_id, "aws_secret_access_key": SECRET})
    renew = (lambda: keys(*renewed)) if renewed else None
    return SourceCredential(value, "secret keys", renew=renew)


def bucket(url: str, *key_ids: str, read_timeout: float = 30) -> Bucket:
    location = parse_bucket_location("s3://models/a", url, {})
    return Bucket(location, keys(*(key_ids or [KEY_ID])), {}, read_timeout)


def unsigned(uri: str, url: str, **environ: str) -> Bucket:
    return Bucket(parse_bucket_location(uri, url, {}), environ=environ)


MESSAGE = "User a may not list, as no policy allows it: see https://aws.example/x?Signature=abc"


def refusal(code: str, status: str = "400 Bad Request", more: str = "") -> bytes:
    message = f"<Error><Code>{code}</Code><Message>{MESSAGE}</Message>{more}</Error>"
    return raw_response(f"<?xml version='1.0'?>{message}", status)


def signatures(server: RawServer) -> list[str]:
    return [request.headers.get("authorization", "") for request in server.heard]


@pytest.mark.parametrize(("code", "case"), by_text("sources/bucket_refusals"))
def test_a_refusal_is_reported_by_its_code_and_not_retried(
    server: RawServer, answers: list[object], code: str, case: dict[str, str]
) -> None:
    """The kind says whether a retry may help; the server's message has no query of a URL."""
    kind = WrongRegion if case["kind"] == "WrongRegion" else getattr(errors, case["kind"])
    answers.append(lambda request: refusal(code, case["status"]))
    with pytest.raises(kind) as caught:
        list(bucket(server.url).list())
    assert type(caught.value) is kind
    assert code in caught.value.summary
    assert caught.value.summary.startswith("s3://models/a: ")
    text = ": User a may not list, as no policy allows it: see https://aws.example/x?…"
    assert (text in caught.value.summary) is (kind is not WrongRegion)
    assert len(server.heard) == 1


def test_an_expired_credential_is_renewed_once(server: RawServer, answers: list[object]) -> None:
    """If the renewed credential has expired, too, that is the error."""

    def respond(request: RawRequest) -> bytes:
        is_new = "=NEW/" in request.headers["authorization"]
        return raw_response(EMPTY) if is_new else refusal("ExpiredToken")

    answers.append(respond)
    assert list(bucket(server.url, "OLD", "NEW").list()) == []
    assert len(server.heard) == 2
    with pytest.raises(errors.SourceDenied, match="has expired") as caught:
        list(bucket(server.url, "OLD", "ALSO-OLD").list())
    assert caught.value.code == "expired-credential"
    assert len(server.heard) == 4
    with pytest.raises(errors.SourceDenied, match="has expired"):
        list(bucket(server.url, "OLD").list())


def test_each_credential_is_renewed_before_it_expires(server: RawServer) -> None:
    def credential(number: int) -> SourceCredential:
        expires_at = datetime.now(UTC) + timedelta(hours=1 if number == 2 else 0)
        keys = {"aws_access_key_id": f"KEY{number}", "aws_secret_access_key": SECRET}
        value = json.dumps({**keys, "expires_at": expires_at.isoformat()})
        return SourceCredential(value, "role", renew=lambda: credential(number + 1))

    cached = CredentialCache().get("role", lambda: credential(0))
    store = Bucket(parse_bucket_location("s3://models/a", server.url, {}), cached, {})
    for _ in range(3):
        list(store.list())
    assert [item.partition("=")[2][:4] for item in signatures(server)] == ["KEY1", "KEY2", "KEY2"]


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("AuthorizationHeaderMalformed", "<Region>REGION</Region>"),
        ("PermanentRedirect", "<Endpoint>m.s3.REGION.amazonaws.com</Endpoint>"),
    ],
)
def test_a_bucket_in_another_region_is_found(
    server: RawServer, answers: list[object], code: str, more: str
) -> None:
    """Later requests are signed for the region that S3 reports; if it reports none, that is an error."""

    def respond(request: RawRequest) -> bytes:
        if "/eu-north-1/" in request.headers["authorization"]:
            return raw_response(EMPTY)
        return refusal(code, more=more.replace("REGION", "eu-north-1"))

    answers.append(respond)
    store = bucket(server.url)
    assert [list(store.list()), list(store.list())] == [[], []]
    assert ["/eu-north-1/" in signature for signature in signatures(server)] == [False, True, True]
    answers.append(lambda request: refusal(code, more=more.replace("REGION", "")))
    with pytest.raises(errors.SourceError, match="is in another region") as caught:
        list(bucket(server.url).list())
    assert caught.value.code == "wrong-region"


@pytest.mark.parametrize("refused", ["Code>PathStyleRequestNotAllowed", "Code>SecondLevelDomainForbidden", "Code>InvalidPathAccess", "Message>Virtual host domain is required"])  # fmt: skip
def test_a_server_that_refuses_path_style_is_asked_at_the_buckets_host(
    server: RawServer, answers: list[object], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """By the clients of sources, mirrors and states, and by that of nodes; not at an IP address."""
    refusing = raw_response(f"<Error><{refused}</", "403 Forbidden")
    answers.append(lambda request: raw_response(EMPTY) if request.headers["host"].startswith("models.") else refusing)  # fmt: skip
    with pytest.raises(
        errors.SourceError,
        match=r"requires virtual-hosted addresses, BUCKET.HOST \(403(, (?!None)\w+)?\)",
    ):
        list(bucket(server.url).list())
    place = {"url": "s3://models", "endpoint_url": f"http://store.test:{server.url[17:]}"}
    client = S3Client("models", place["endpoint_url"], {})
    with monkeypatch.context() as patch:
        find = socket.getaddrinfo
        patch.setattr(socket, "getaddrinfo", lambda host, *more: find("127.0.0.1", *more))
        assert client.request("GET", "a/x").body == EMPTY.encode()
        access: Any = SimpleNamespace(values=lambda _: {})
        saved = CheckpointClient(access, access, RunRecord("a", 1, "k", store=place))
        assert saved.urls(["p/x"], 60) == [client.presigned("p/x", 60)]
    assert client.presigned("a/x", 60).startswith("http://models.store.test:")
    monkeypatch.setenv("http_proxy", server.url)
    store, other = bucket("http://store.test"), bucket("http://store.test")
    assert (list(store.list()), other.get("x")) == ([], EMPTY.encode())
    assert (other.sign("x", 60) or "").startswith("http://models.store.test/a/x?")
    assert store.address("x") == "http://models.store.test/a/x"


def test_lists_of_amazon_report_restores(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """In each partition and at VPC endpoints; other servers may refuse the header."""
    monkeypatch.setenv("http_proxy", server.url)
    amazon = ["s3.us-gov-west-1.amazonaws.com", "v.vpce.amazonaws.com", "s3.amazonaws.com.cn"]
    for host in (*amazon, "store.test"):
        list(bucket(f"http://{host}").list())
    sent = ["x-amz-optional-object-attributes" in request.headers for request in server.heard]
    assert sent == [True, True, True, False]


def test_a_large_upload_may_take_longer_than_the_read_timeout(
    server: RawServer, answers: list[object]
) -> None:
    """A small one may not."""

    def slow(request: RawRequest) -> bytes:
        time.sleep(1)
        return raw_response(ETag='"1"')

    answers.append(slow)
    store = bucket(server.url, read_timeout=0.2)
    store.put("large", bytes(2**20 + 1))
    with pytest.raises(errors.SourceUnreachable):
        store.put("small", b"1")


def test_certificates_of_the_environment_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(FaultyHandler):
        def do_GET(self) -> None:  # noqa: N802  the name is the library's
            self.answer(200, EMPTY.encode())

    certificates = str(authority().certificates)
    with listen(Handler, authority().server) as url:
        with pytest.raises(errors.SourceError) as caught:
            list(unsigned("s3://models/a", url).list())
        assert caught.value.code == "untrusted-certificate"
        for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "AWS_CA_BUNDLE"):
            with monkeypatch.context() as patch:
                patch.setenv(name, certificates)
                store = unsigned("s3://models/a", url, **{name: certificates})
                assert (list(store.list()), store.get("a")) == ([], EMPTY.encode())
        with pytest.raises(errors.SourceError, match="cannot read certificates from /nowhere"):
            unsigned("s3://models/a", url, AWS_CA_BUNDLE="/nowhere.pem")


def test_certificates_are_read_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan opens many buckets at once, and a directory of certificates is long."""
    calls: list[str] = []

    def read(name: str, location: str) -> bytes:
        calls.append(name)
        time.sleep(0.05)  # the others ask meanwhile
        return location.encode()

    monkeypatch.setattr(obstore_client, "_read", read)
    named = {"SSL_CERT_DIR": "/authorities", "SSL_CERT_FILE": "/authority.pem"}
    results = each(obstore_client.read_certificates, [named] * 8, 8)
    assert {b"/authorities", b"/authority.pem"} == set(results[0].split(b"\n"))
    assert set(results) == {results[0]}
    assert sorted(calls) == sorted(named)


def test_the_environment_neither_signs_nor_redirects(
    server: RawServer, answers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "no base64")
    assert list(unsigned("s3://models/a", server.url).list()) == []
    answers.append(lambda request: raw_response(status="404 Not Found"))
    assert unsigned("azure://mine/models", server.url).get("a") is None
    assert signatures(server) == ["", ""]


def test_a_missing_bucket_is_not_an_existing_object() -> None:
    """Otherwise a lock would be awaited forever."""
    with moto() as server:
        missing = parse_bucket_location("s3://missing/a", server.endpoint, {})
        store = Bucket(missing, keys(KEY_ID), {})
        with pytest.raises(errors.SourceNotFound, match="bucket not found"):
            store.put_if_absent("lock", b"1")


@pytest.mark.parametrize("url", ["s3://models", "gs://models", "azure://account/models"])
def test_without_a_credential_no_metadata_server_is_asked(
    server: RawServer, answers: list[object], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Its token would be sent to the bucket."""
    token = raw_response('{"access_token": "t", "expires_in": 3600}')
    answers.append(lambda request: raw_response(status="403 Forbidden"))
    with serve_responses(lambda request: token) as metadata:
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, metadata.url.partition("//")[2])
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url)
        store = unsigned(url, server.url)
        acts: list[Callable[[], object]] = [
            lambda: store.get("x"),
            lambda: store.put("x", b"1"),
            lambda: store.delete(["x"]),
        ]
        for act in acts:
            with pytest.raises(errors.SourceError, match="403"):
                act()
    assert metadata.heard == []


class Faulty:
    """A bucket in memory. ``faults`` are raised by the next calls, after they did what they do."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.faults: list[errors.SourceError] = []
        self.calls = 0
        self.replaced = b""

    def responding(self, value: Any) -> Any:
        self.calls += 1
        if self.faults:
            raise self.faults.pop()
        return value

    def get(self, key: str, options: Any = None) -> Any:
        return self.responding(self.memory.get(key))

    def put(self, key: str, data: bytes, **options: Any) -> None:
        if self.replaced:
            self.memory.put(key, self.replaced)
        else:
            self.memory.put(key, data, **options)
        self.responding(None)

    def delete(self, keys: list[str]) -> None:
        assert len(keys) <= 1000
        self.memory.delete(keys)
        self.responding(None)

    def list_page(
        self, prefix: str, after: str, cursor: str | None
    ) -> tuple[list[ObjectInfo], str | None]:
        names = sorted(info["path"] for infos in self.memory.list() for info in infos)
        start = int(cursor or 0)
        page = [ObjectInfo(name, 1, 0.0) for name in names[start : start + 700]]
        return self.responding((page, str(start + 700) if start + 700 < len(names) else None))  # type: ignore[no-any-return]


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    server = Faulty()
    monkeypatch.setattr(bucket_module, "open_client", lambda *settings, **more: server)
    monkeypatch.setattr(bucket_module, "MetadataClient", lambda *settings: server)
    return server


def mirror(access: SourceCredential | None = None) -> BucketObjects:
    retry = RetryPolicy(wait=lambda cancelled, seconds: None, attempts=3)
    return BucketObjects("s3://models/pre", None, lambda: access, retry, environ={})


def test_transient_errors_of_a_mirror_are_retried(faulty: Faulty) -> None:
    faulty.memory.put("a", b"x")
    faulty.faults = [errors.SourceUnavailable("later"), errors.SourceUnavailable("later")]
    assert mirror().get("a") == b"x"
    assert faulty.calls == 3


def test_errors_of_a_mirror_name_it_and_not_the_object(
    server: RawServer, answers: list[object]
) -> None:
    answers.append(lambda request: refusal("AccessDenied", "403 Forbidden"))
    url, retry = "s3://models/pre", RetryPolicy()
    objects = BucketObjects(url, server.url, lambda: keys(KEY_ID), retry, environ={})
    with pytest.raises(errors.StorageError) as caught:
        objects.get("secret/key")
    assert caught.value.summary.startswith(f"mirror {url}: ")
    assert caught.value.code == "source-denied"
    assert "secret" not in caught.value.summary.partition(": secret keys")[0]
    assert len(server.heard) == 1
    malformed = SourceCredential("{", "secret m")
    with pytest.raises(errors.StorageError, match=f"mirror {url}: secret m"):
        BucketObjects(url, server.url, lambda: malformed, retry, environ={}).get("a")


def test_a_creation_that_got_no_response_or_was_replaced_is_looked_at(faulty: Faulty) -> None:
    objects = mirror()
    faulty.faults = [errors.SourceUnavailable("cut")]
    assert objects.put_if_absent("a", b"mine")
    faulty.faults = [errors.SourceUnavailable("cut")]
    assert not objects.put_if_absent("a", b"other")
    faulty.replaced = b"of a later writer"
    assert not objects.put_if_absent("b", b"mine")


def test_a_list_repeats_the_request_that_failed_and_deletions_are_batches(faulty: Faulty) -> None:
    names = [f"{number:04}" for number in range(2500)]
    for name in names:
        faulty.memory.put(name, b"x")
    faulty.faults = [errors.SourceUnavailable("cut"), errors.SourceUnavailable("cut")]
    assert [stat.key for stat in mirror().list("")] == names
    assert not faulty.faults
    faulty.calls = 0
    mirror().delete(names[1:])
    assert [stat.key for stat in mirror().list("")] == names[:1]
    assert faulty.calls == 4


def test_a_credential_that_cannot_sign(faulty: Faulty) -> None:
    with pytest.raises(errors.StorageError) as caught:
        mirror().presigned(["a"], 60)
    assert caught.value.code == "mirror-cannot-presign"


NAMES = ["a b", "a%20b", "50% off", "#1", "a?b", "a+b", "a&b=c", "a,b;c", "ü", "a'(b)", "[x]{y}", "a~b", "a@b:c"]  # fmt: skip


@pytest.mark.parametrize("platform", ["s3", "google", "azure"])
def test_a_presigned_url_opens_the_object_of_that_name(platform: str, tmp_path: Path) -> None:
    """Also below a prefix of such a name; a list has the same name."""
    with SERVERS[platform](tmp_path) as server:
        contents = []
        for name in NAMES:
            url, environ, value = place_in(server, name)
            location = parse_bucket_location(url, None, environ)
            store = Bucket(location, SourceCredential(value, "the test"), environ)
            store.put(name, name.encode())
            presigned = store.sign(name, 100) or ""
            if isinstance(server, GoogleXml):
                presigned = presigned.replace("https://storage.googleapis.com", server.url)
            with urllib.request.urlopen(presigned) as response:
                contents.append((next(store.list()).key, response.read().decode()))
    assert contents == [(name, name) for name in NAMES]
