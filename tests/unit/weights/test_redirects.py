"""Who is sent elsewhere takes no credential along: two servers, of which the second writes down what it hears."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers.buckets import KEY_ID, SECRET
from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import FaultyHandler, listen
from tests.support.servers.raw_server import RawServer, raw_response, serve_responses
from trainctl.errors import SourceDenied, SourceError
from trainctl.objects.bucket_client import Bucket
from trainctl.objects.credentials import AwsKeys, AzurePrincipal, AzureSas, BucketCredential
from trainctl.objects.default_chain import azure_token
from trainctl.objects.google import federated_token
from trainctl.objects.location import parse_bucket_location
from trainctl.objects.token_requests import identity_token
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources import source_for

SESSION = "the-session-token"
KEYS = json.dumps(
    {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET, "aws_session_token": SESSION}
)
LISTED = """<R xmlns='s3'><Contents><Key>llm/x</Key><Size>4</Size><ETag>e</ETag>
<ChecksumAlgorithm>SHA256</ChecksumAlgorithm></Contents></R>"""


@pytest.fixture
def elsewhere() -> Iterator[RawServer]:
    with serve_responses(lambda heard: raw_response("{}")) as liar:
        yield liar


@pytest.fixture
def sending(elsewhere: RawServer) -> Iterator[RawServer]:
    """Sends everybody there."""

    away = raw_response(status="302 Found", Location=f"{elsewhere.url}/there")
    with serve_responses(lambda heard: away) as liar:
        yield liar


def test_a_list_that_nobody_signed_is(sending: RawServer, elsewhere: RawServer) -> None:
    """There is nothing to take along."""
    with pytest.raises(SourceError):
        source_for("s3").resolve("s3://box/llm", None, SourceCredential("", "nobody", sending.url))

    assert elsewhere.heard


OPENED: dict[str, BucketCredential] = {
    "s3://box/llm": AwsKeys(KEY_ID, SECRET, SESSION),
    "azure://acme/box/llm": AzureSas("sv=2021-08-06&sig=the-signature"),
}
ASKED: list[Callable[[Bucket], object]] = [
    lambda bucket: list(bucket.list()),
    lambda bucket: bucket.head("x"),
    lambda bucket: bucket.get("x"),
    lambda bucket: bucket.put("x", b"content"),
    lambda bucket: bucket.delete("x"),
]


@pytest.mark.parametrize("uri", OPENED)
@pytest.mark.parametrize("ask", ASKED)
def test_the_engine_goes_nowhere_else(
    elsewhere: RawServer, uri: str, ask: Callable[[Bucket], object]
) -> None:
    """It would take S3's session along, and name the URL that a shared signature is a part of. Its error says who sends on."""
    there = elsewhere.url.replace("127.0.0.1", "localhost")
    with serve_responses(
        lambda heard: raw_response(status="307 Temporary Redirect", Location=there)
    ) as sending:
        bucket = Bucket(parse_bucket_location(uri, sending.url, {}), OPENED[uri], environ={})
        with pytest.raises(SourceError, match=rf"{sending.url[7:]} redirects to another") as caught:
            ask(bucket)

    assert len(sending.heard) == 1
    assert (caught.value.code, elsewhere.heard) == ("unsafe-redirect", [])


def test_the_engine_still_asks_who_gives_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a service principal it is another server, which the environment or the platform names."""
    token = raw_response('{"access_token": "the-token", "expires_in": 3600}')
    with (
        serve_responses(lambda heard: token) as entra,
        serve_responses(lambda heard: raw_response(LISTED)) as blobs,
    ):
        there = {"AZURE_AUTHORITY_HOST": entra.url.replace("127.0.0.1", "localhost")}
        monkeypatch.setenv(*there.popitem())
        place = parse_bucket_location("azure://acme/box", blobs.url, {})
        with pytest.raises(SourceError):
            Bucket(place, AzurePrincipal("tenant", "client", SECRET)).get("x")

    assert [one.target for one in entra.heard] == ["/tenant/oauth2/v2.0/token"]
    assert [one.headers["authorization"] for one in blobs.heard] == ["Bearer the-token"]


def test_the_engine_goes_where_the_environments_proxy_leads(
    elsewhere: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There can be only one, so what a server behind it sends on to is asked for, without a signature."""
    with serve_responses(lambda heard: raw_response(status="404 Not Found")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        bucket = Bucket(
            parse_bucket_location("s3://box", elsewhere.url, {}), OPENED["s3://box/llm"], environ={}
        )
        found = bucket.head("x")

    assert (found, elsewhere.heard) == (None, [])
    assert [one.target for one in proxy.heard] == [f"{elsewhere.url}/box/x"]


def test_the_engine_goes_nowhere_less_safe(elsewhere: RawServer) -> None:
    """From https to http nothing follows, session or not."""

    class Sending(FaultyHandler):
        closing = threading.Event()

        def do_GET(self) -> None:  # noqa: N802  the name is the library's
            self.answer(302, b"", {"Location": f"{elsewhere.url}/there"})

    trusting = {"SSL_CERT_FILE": str(authority().certificates)}
    keys = AwsKeys(KEY_ID, SECRET, SESSION)
    with listen(Sending, authority().server) as url, pytest.raises(SourceError):
        list(Bucket(parse_bucket_location("s3://box/llm", url, {}), keys, environ=trusting).list())

    assert elsewhere.heard == []


def test_tokens_are_asked_for_of_nobody_else(
    sending: RawServer, elsewhere: RawServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is exchanged, and what opens a machine's or a job's own, stay with the server that they are for."""
    (tmp_path / "token").write_text("the-identity")
    granted = {"access_token": "t", "issued_token_type": "t", "token_type": "t", "expires_in": 9}
    with serve_responses(lambda heard: raw_response(json.dumps(granted))) as sts:
        environ = {
            "GOOGLE_OIDC_TOKEN_FILE": str(tmp_path / "token"),
            "GOOGLE_STS_URL": sts.url,
            "GOOGLE_IAM_CREDENTIALS_URL": sending.url,
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{sending.url}/oidc?x=1",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "the-token",
            "IDENTITY_ENDPOINT": sending.url,
            "IDENTITY_HEADER": "the-header",
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SourceDenied):
            federated_token("projects/1/pool", "me@acme")
        with pytest.raises(SourceDenied, match="302"):
            identity_token("us", "UNSET", environ)
        with pytest.raises(SourceDenied):
            azure_token("this machine")
        asked = {heard.target.partition("?")[0] for heard in sending.heard}
        assert {"/oidc", "/"} < asked  # the third is Google's

    assert elsewhere.heard == []
