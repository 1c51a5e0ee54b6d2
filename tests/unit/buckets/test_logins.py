"""Credentials of roles, federations, and the default chain; moto is AWS, and a server on loopback is Google and Entra."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import boto3
import pytest

from tests.support.cases import cases
from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, free_port, moto
from tests.support.servers.certificate_authority import authority
from tests.support.servers.clouds import ACCOUNT, service_account
from tests.support.servers.hub import FaultyHandler, listen
from tests.support.servers.identity_servers import AUDIENCE, POOL, IdentityServers, identity_servers
from trainctl import errors
from trainctl.buckets.credentials import AwsKeys, BearerToken, parse_credential
from trainctl.buckets.default_chain import default_credential, default_credential_origin
from trainctl.buckets.logins import (
    assume_role,
    assume_role_by_identity,
    azure_token,
    federated_token,
)
from trainctl.plugin_api.sources import SourceCredential

pytestmark = pytest.mark.integration

ROLE = "arn:aws:iam::123456789012:role/reader"
TENANT = "11111111-2222-3333-4444-555555555555"
MAILBOX = "reader@demo.iam.gserviceaccount.com"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketServer]:
    """AWS as this process finds it; nothing of the user's own."""
    with moto() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.fixture
def google() -> Iterator[IdentityServers]:
    with identity_servers() as running:
        yield running


def surroundings(google: IdentityServers, token: Path | None) -> dict[str, str]:
    environ = {
        "GOOGLE_STS_URL": google.url,
        "GOOGLE_IAM_CREDENTIALS_URL": google.url,
        "ACTIONS_ID_TOKEN_REQUEST_URL": f"{google.url}/oidc?api-version=1",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request-token",
    }
    return environ | ({"GOOGLE_OIDC_TOKEN_FILE": str(token)} if token else {})


def keys_of(credential: SourceCredential) -> AwsKeys:
    result = parse_credential("s3", credential.value, credential.origin)
    assert isinstance(result, AwsKeys)
    return result


def test_a_role_is_assumed_by_the_operators_own_key(
    aws: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session expires and can be renewed."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    first = assume_role(ROLE, "eu-west-1")
    keys = keys_of(first)
    assert keys.session
    assert keys.expires_at is not None
    assert keys.expires_at > datetime.now(UTC) + timedelta(minutes=10)
    assert (keys.region, first.origin) == ("eu-west-1", f"role {ROLE}")
    assert first.renew is not None
    assert keys_of(first.renew()).secret != keys.secret


def test_a_role_needs_a_credential_of_the_operator(
    aws: BucketServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(errors.SourceDenied, match="no AWS credential") as caught:
        assume_role(ROLE, "eu-west-1")
    assert caught.value.code == "missing-secret"
    assert ROLE in caught.value.summary
    assert "aws sso login" in caught.value.detail


def test_github_actions_issues_an_identity_token(
    aws: BucketServer, google: IdentityServers
) -> None:
    environ = surroundings(google, None)
    assert keys_of(assume_role_by_identity(ROLE, "eu-west-1", environ)).session
    ((path, query, authorization),) = google.asked
    assert path.startswith("/oidc?")
    assert query["audience"] == ["sts.amazonaws.com"]
    assert authorization == "Bearer request-token"


def test_a_missing_identity_token_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.SourceDenied, match="no identity token found") as caught:
        assume_role_by_identity(ROLE, "eu-west-1", {})
    assert "AWS_WEB_IDENTITY_TOKEN_FILE" in caught.value.detail
    gone = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "none")}
    with pytest.raises(errors.SourceDenied, match="cannot read an identity token"):
        assume_role_by_identity(ROLE, "eu-west-1", gone)


def test_google_exchanges_an_identity_token(google: IdentityServers, tmp_path: Path) -> None:
    """The identity becomes a federated token, and that one of the account, which can be renewed."""
    (tmp_path / "token").write_text("header.claims.signature")
    environ = surroundings(google, tmp_path / "token")
    token = federated_token(POOL, MAILBOX, environ)
    access = parse_credential("gs", token.value, token.origin)
    assert isinstance(access, BearerToken)
    assert access.token == google.granted[0]
    assert access.expires_at is not None
    assert google.asked[0][1]["audience"] == AUDIENCE
    assert google.asked[1][0].endswith(f"/serviceAccounts/{MAILBOX}:generateAccessToken")
    assert token.renew is not None
    assert google.granted[0] not in token.renew().value


def test_a_refusal_of_google_is_not_an_unavailable_google(
    google: IdentityServers, tmp_path: Path
) -> None:
    """The error has the server's message, but no token."""
    (tmp_path / "token").write_text("eyJhbGci.claims.signature")
    environ = surroundings(google, tmp_path / "token")
    google.refuses = 403
    with pytest.raises(
        errors.SourceDenied, match=f"no credential for service account {MAILBOX}"
    ) as refused:
        federated_token(POOL, MAILBOX, environ)
    assert "claims" not in str(refused.value)
    assert refused.value.summary.endswith(": not …")
    google.refuses = 503
    with pytest.raises(errors.SourceUnavailable, match="503"):
        federated_token(POOL, MAILBOX, environ)
    environ["GOOGLE_STS_URL"] = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(errors.SourceUnreachable, match="unreachable"):
        federated_token(POOL, MAILBOX, environ)
    with pytest.raises(errors.SourceDenied) as missing:
        federated_token(POOL, MAILBOX, {})
    assert missing.value.code == "missing-secret"


def test_identity_requests_trust_the_certificates_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("header.claims.signature")
    with identity_servers(authority().server) as google:
        environ = surroundings(google, tmp_path / "token")
        with pytest.raises(errors.SourceError, match="not trusted") as caught:
            federated_token(POOL, MAILBOX, environ)
        assert (caught.value.code, google.granted) == ("untrusted-certificate", [])
        monkeypatch.setenv("CURL_CA_BUNDLE", str(authority().certificates))
        federated_token(POOL, MAILBOX, environ)
        assert len(google.granted) == 1


def test_an_unreachable_aws_is_no_refusal(
    aws: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror may be used then."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{free_port()}")
    (tmp_path / "token").write_text("header.claims.signature")
    environ = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token")}
    with pytest.raises(errors.SourceUnreachable, match="AWS is unreachable"):
        assume_role_by_identity(ROLE, "eu-west-1", environ)


@pytest.mark.parametrize("case", cases("sources/default_credentials"))
def test_the_default_chain_reads_the_environment(tmp_path: Path, case: dict[str, Any]) -> None:
    """A credential opens a bucket; half of it, or another account's, is none."""
    scheme, origin = case["scheme"], case.get("origin")
    environ = {**case["environ"], "HOME": str(tmp_path)}
    credential = default_credential(scheme, ACCOUNT, environ)
    assert (credential.origin if credential else None) == origin
    assert default_credential_origin(scheme, ACCOUNT, environ) == origin
    if credential:
        parse_credential(scheme, credential.value, credential.origin)


def test_a_profile_is_read_by_boto3(aws: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path.home()
    (home / ".aws").mkdir()
    keys = f"aws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"
    (home / ".aws" / "credentials").write_text(f"[team]\n{keys}")
    monkeypatch.setenv("AWS_PROFILE", "team")
    credential = default_credential("s3", "", {"AWS_PROFILE": "team", "HOME": str(home)})
    assert credential is not None
    assert keys_of(credential) == AwsKeys(KEY_ID, SECRET)
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(errors.SourceDenied, match="no AWS credential found for AWS_PROFILE"):
        default_credential("s3", "", {"AWS_PROFILE": "absent", "HOME": str(home)})


def test_a_credential_file_of_google_is_found_and_validated(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    environ = {"GOOGLE_APPLICATION_CREDENTIALS": str(path), "HOME": str(tmp_path)}
    with pytest.raises(errors.SourceDenied, match=r"cannot read .*key\.json"):
        default_credential("gs", "", environ)
    path.write_text("[]")
    with pytest.raises(errors.SourceDenied, match="not a Google credential"):
        default_credential("gs", "", environ)
    path.write_text(json.dumps(service_account()))
    credential = default_credential("gs", "", environ)
    assert credential is not None
    assert json.loads(credential.value)["client_email"] == MAILBOX


class Entra(FaultyHandler):
    """Grants a token for the right federated token."""

    def do_GET(self) -> None:  # noqa: N802  the name is the library's
        base = f"https://{self.headers['Host']}/{TENANT}"
        endpoints = {
            "authorization_endpoint": f"{base}/authorize",
            "token_endpoint": f"{base}/oauth2/v2.0/token",
            "issuer": f"{base}/v2.0",
        }
        self.reply(200, endpoints)

    def do_POST(self) -> None:  # noqa: N802
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        sent = form["client_assertion"]
        if sent == ["header.claims.signature"]:
            granted = {"access_token": "granted", "expires_in": 3599, "token_type": "Bearer"}
            self.reply(200, granted)
        else:
            self.reply(
                401,
                {
                    "error": "invalid_client",
                    "error_description": f"AADSTS50012: not {sent}. Trace ID: x",
                },
            )

    def reply(self, status: int, document: dict[str, Any]) -> None:
        self.answer(status, json.dumps(document).encode(), {"Content-Type": "application/json"})


def test_a_workload_identity_of_azure_becomes_a_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It expires, can be renewed, and is in the default chain; a refusal shows no secret."""
    identity = tmp_path / "token"
    identity.write_text("header.claims.signature")
    environ = {"HOME": str(tmp_path), "AZURE_FEDERATED_TOKEN_FILE": str(identity)}
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(identity))
    monkeypatch.setenv("AZURE_TENANT_ID", TENANT)
    monkeypatch.setenv("AZURE_CLIENT_ID", "the-client")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
    with listen(Entra, authority().server) as url:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", url)
        token = azure_token("the test")
        access = parse_credential("azure", token.value, token.origin)
        assert isinstance(access, BearerToken)
        assert (access.token, access.expires_at is not None) == ("granted", True)
        assert token.renew is not None
        assert token.renew().origin == "the test"
        default = default_credential("azure", "account", environ)
        assert default is not None
        assert "granted" in default.value

        identity.write_text("eyJ.wrong-secret")
        with pytest.raises(errors.SourceDenied, match="the test") as caught:
            azure_token("the test")
    assert caught.value.summary.endswith(": AADSTS50012: not ['…']")
    assert "wrong-secret" not in f"{caught.value.summary} {caught.value.detail}"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(errors.TrainctlError) as caught:
        azure_token("the test")
    assert caught.value.code == "missing-extra"
    assert "trainctl[azure]" in caught.value.detail
