"""Tokens of Entra ID, from a server on loopback over TLS."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.support.authority import authority
from tests.support.buckets import free_port
from tests.support.hub import FaultyHandler, listening
from trainctl.errors import SourceDenied, SourceError, SourceUnreachable, TrainctlError
from trainctl.objects.access import AzurePrincipal, Bearer, access_of
from trainctl.objects.azure import principal_token
from trainctl.objects.default_chain import default_credential, default_origin

pytestmark = pytest.mark.integration

SECRET = "the secret & more"
TENANT = "11111111-2222-3333-4444-555555555555"


class Entra(FaultyHandler):
    """Grants a token for the right secret or federated token."""

    closing = threading.Event()

    def do_GET(self) -> None:  # noqa: N802  the name is the library's
        base = f"https://{self.headers['Host']}/{TENANT}"
        found = {
            "authorization_endpoint": f"{base}/authorize",
            "token_endpoint": f"{base}/oauth2/v2.0/token",
            "issuer": f"{base}/v2.0",
        }
        self.reply(200, found)

    def do_POST(self) -> None:  # noqa: N802
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        sent = form.get("client_secret") or form.get("client_assertion")
        if sent in ([SECRET], ["header.claims.signature"]):
            granted = {"access_token": "granted", "expires_in": 3599, "token_type": "Bearer"}
            self.reply(200, granted)
        else:
            refused = {"error": "invalid_client", "error_description": f"not {sent}"}
            self.reply(401, refused)

    def reply(self, status: int, document: Mapping[str, object]) -> None:
        body = json.dumps(document).encode()
        self.head(status, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)


@pytest.fixture
def entra(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority().certificates))
    with listening(Entra, authority().server) as url:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", url)
        yield url


def principal(secret: str = SECRET) -> AzurePrincipal:
    return AzurePrincipal(TENANT, "the-client", secret)


@pytest.mark.usefixtures("entra")
def test_a_principals_secret_becomes_a_token_that_ends() -> None:
    found = principal_token(principal(), "the test")
    access = access_of("azure", found.value, found.origin)
    assert isinstance(access, Bearer)
    assert (access.token, access.ends is not None) == ("granted", True)
    assert found.renew is not None
    assert found.renew().origin == "the test"


@pytest.mark.usefixtures("entra")
def test_a_refusal_shows_no_secret() -> None:
    with pytest.raises(SourceDenied, match="the test") as caught:
        principal_token(principal("wrong-secret"), "the test")
    assert "wrong-secret" not in f"{caught.value.summary} {caught.value.detail}"


@pytest.mark.usefixtures("entra")
def test_a_workload_identity_is_found_by_its_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("header.claims.signature")
    environ = {
        "HOME": str(tmp_path),
        "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "token"),
        "AZURE_TENANT_ID": TENANT,
        "AZURE_CLIENT_ID": "the-client",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = default_credential("azure", "account", environ)
    assert found is not None
    assert "granted" in found.value
    assert default_origin("azure", "account", environ) == "AZURE_FEDERATED_TOKEN_FILE"


@pytest.mark.usefixtures("entra")
def test_a_server_that_is_not_trusted_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SourceError) as caught:
        principal_token(principal(), "the test")
    assert caught.value.code == "untrusted-certificate"


def test_nobody_there_is_no_refusal() -> None:
    nowhere = {"AZURE_AUTHORITY_HOST": f"https://127.0.0.1:{free_port()}"}
    with pytest.raises(SourceUnreachable, match="unreachable"):
        principal_token(principal(), "the test", nowhere)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "azure.identity", None)
    with pytest.raises(TrainctlError) as caught:
        principal_token(principal(), "the test")
    assert caught.value.code == "missing-extra"
    assert "trainctl[azure]" in caught.value.detail
