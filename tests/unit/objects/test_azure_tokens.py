"""Tokens of Entra ID, from a server on loopback over TLS."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import FaultyHandler, listen
from trainctl.errors import SourceDenied, TrainctlError
from trainctl.objects.credentials import BearerToken, parse_credential
from trainctl.objects.default_chain import (
    azure_token,
    default_credential,
    default_credential_origin,
)

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
    with listen(Entra, authority().server) as url:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", url)
        yield url


@pytest.fixture(autouse=True)
def token_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a workload identity that the environment names."""
    path = tmp_path / "token"
    path.write_text("header.claims.signature")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(path))
    monkeypatch.setenv("AZURE_TENANT_ID", TENANT)
    monkeypatch.setenv("AZURE_CLIENT_ID", "the-client")
    return path


@pytest.mark.usefixtures("entra")
def test_a_workload_identity_becomes_a_token_that_ends() -> None:
    found = azure_token("the test")
    access = parse_credential("azure", found.value, found.origin)
    assert isinstance(access, BearerToken)
    assert (access.token, access.expires_at is not None) == ("granted", True)
    assert found.renew is not None
    assert found.renew().origin == "the test"


@pytest.mark.usefixtures("entra")
def test_a_refusal_shows_no_secret(token_file: Path) -> None:
    token_file.write_text("wrong-secret")
    with pytest.raises(SourceDenied, match="the test") as caught:
        azure_token("the test")
    assert "wrong-secret" not in f"{caught.value.summary} {caught.value.detail}"


@pytest.mark.usefixtures("entra")
def test_a_workload_identity_is_found_by_its_variables(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "token")}
    found = default_credential("azure", "account", environ)
    assert found is not None
    assert "granted" in found.value
    assert default_credential_origin("azure", "account", environ) == "AZURE_FEDERATED_TOKEN_FILE"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "azure.identity", None)
    with pytest.raises(TrainctlError) as caught:
        azure_token("the test")
    assert caught.value.code == "missing-extra"
    assert "trainctl[azure]" in caught.value.detail
