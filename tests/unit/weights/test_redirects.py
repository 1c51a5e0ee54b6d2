"""Credentials don't follow redirects: a server that redirects, and one that records its requests."""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.auth.crypt import RSASigner

from tests.support.servers.buckets import KEY_ID, SECRET
from tests.support.servers.clouds import service_account
from tests.support.servers.raw_server import RawServer, raw_response, serve_responses
from trainctl.buckets.bucket import Bucket
from trainctl.buckets.location import parse_bucket_location
from trainctl.buckets.logins import azure_token, federated_token, identity_token
from trainctl.errors import SourceDenied, SourceError
from trainctl.plugin_api.sources import SourceCredential

LISTED = "<ListBucketResult></ListBucketResult>"


@pytest.fixture
def elsewhere() -> Iterator[RawServer]:
    with serve_responses(lambda request: raw_response("{}")) as server:
        yield server


OPENED = {
    "s3://box/llm": {
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "aws_session_token": "the-session-token",
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
            with pytest.raises(SourceError, match=rf"{host} redirects to another") as caught:
                send(bucket)
            assert len(redirecting.heard) == 1
            assert caught.value.code == "unsafe-redirect"
    assert elsewhere.heard == []


def test_a_service_principal_gets_its_token_from_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = json.dumps({"error": "invalid_client", "error_description": "The secret is invalid"})
    token = raw_response('{"access_token": "the-token", "expires_in": 3600}')
    answers = [token, token, raw_response(said, "401 Unauthorized")]
    with (
        serve_responses(lambda request: answers.pop()) as entra,
        serve_responses(lambda request: raw_response(LISTED)) as blobs,
    ):
        there = {"AZURE_AUTHORITY_HOST": entra.url.replace("127.0.0.1", "localhost")}
        monkeypatch.setenv(*there.popitem())
        principal = {"tenant_id": "tenant", "client_id": "client", "client_secret": SECRET}
        bucket = opened("azure://acme/box", blobs.url, principal, os.environ)
        with pytest.raises(SourceError, match=r"by localhost:\d+ \(401\): The secret is invalid"):
            list(bucket.list())
        with pytest.raises(SourceError):
            bucket.get("x")
        assert list(bucket.list()) == list(bucket.list()) == []

    # one is obstore's
    assert [one.target for one in entra.heard] == ["/tenant/oauth2/v2.0/token"] * 3
    assert [one.headers["authorization"] for one in blobs.heard] == ["Bearer the-token"] * 3


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
        with pytest.raises(SourceDenied):
            federated_token("projects/1/pool", "me@acme")
        with pytest.raises(SourceDenied, match="302"):
            identity_token("us", "UNSET", environ)
        with pytest.raises(SourceDenied):
            azure_token("this machine")
        paths = {request.target.partition("?")[0] for request in redirecting.heard}
        assert {"/oidc", "/"} < paths  # the third is Google's

    assert elsewhere.heard == []
