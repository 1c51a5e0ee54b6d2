"""Accounts of machines, from metadata servers on loopback that the platforms' own variables name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from trainctl.buckets.credentials import AwsKeys, BearerToken, BucketCredential, parse_credential
from trainctl.buckets.default_chain import default_credential, runs_on_platform
from trainctl.model.redaction import Redactor
from trainctl.model.specs.auth import SourceAuthSpec
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential
from trainctl.secrets.resolver import SecretResolver

ROLE = "/latest/meta-data/iam/security-credentials/"
PROOFS = ("metadata-flavor", "metadata", "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds")  # fmt: skip
"""Headers that prove that a client asks a metadata server on purpose."""


@dataclass
class Metadata:
    """Responses by path; each request as path and proof."""

    url: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    state = Metadata()

    def respond(request: RawRequest) -> bytes:
        path = request.target.partition("?")[0]
        proof = next((value for name in PROOFS if (value := request.headers.get(name))), "")
        state.asked.append((path, proof))
        body = state.answers.get(path, "") if proof else ""
        status = "200 OK" if body else "404 Not Found"
        return raw_response(body, status, Content_Type="application/json")

    with serve_responses(respond) as server:
        state.url = server.url
        yield state


def found_by(
    scheme: str, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> tuple[SourceCredential, BucketCredential]:
    """The default credential of a process with this environment, which the libraries read."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if host := environ.get("GCE_METADATA_HOST"):  # google-auth reads it at import
        monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", host)
    credential = default_credential(scheme, "account", environ)
    assert credential is not None
    return credential, parse_credential(scheme, credential.value, credential.origin)


def test_a_machine_of_google_has_a_service_account(
    metadata: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token expires and can be renewed."""
    account = "/computeMetadata/v1/instance/service-accounts/default/"
    metadata.answers[account] = json.dumps({"email": "default", "scopes": ["cloud-platform"]})
    environ = {"HOME": str(tmp_path), "GCE_METADATA_HOST": metadata.url.partition("//")[2]}

    def grant(token: str) -> None:
        granted = {"access_token": token, "expires_in": 3599}
        metadata.answers[f"{account}token"] = json.dumps(granted)

    grant("ya29.machine")
    credential, access = found_by("gs", monkeypatch, environ)
    assert isinstance(access, BearerToken)
    assert (access.token, access.expires_at is not None) == ("ya29.machine", True)
    assert credential.renew is not None
    grant("ya29.next")
    assert "ya29.next" in credential.renew().value
    assert {proof for _, proof in metadata.asked} == {"Google"}


def test_a_machine_of_azure_has_an_identity(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = "/metadata/identity/oauth2/token"
    granted = {"access_token": "eyJ.machine", "expires_in": "86399", "expires_on": "4102444800"}
    metadata.answers[path] = json.dumps(granted)
    environ = {"AZURE_POD_IDENTITY_AUTHORITY_HOST": metadata.url, "HOME": str(tmp_path)}
    _, access = found_by("azure", monkeypatch, environ)
    assert isinstance(access, BearerToken)
    assert access.token == "eyJ.machine"
    assert set(metadata.asked) == {(path, "true")}


def test_a_machine_of_amazon_has_a_role(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From version 2 of the service, which needs a session."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    granted = {"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "ASIAEXAMPLE", "SecretAccessKey": "role-secret-key", "Token": "role-session", "LastUpdated": "2026-11-22T00:00:00Z", "Expiration": "2099-11-22T00:00:00Z"}  # fmt: skip
    metadata.answers["/latest/api/token"] = "session-token"
    metadata.answers |= {ROLE: "reader", f"{ROLE}reader": json.dumps(granted)}
    environ = {"HOME": str(tmp_path), "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{metadata.url}/"}
    _, access = found_by("s3", monkeypatch, environ)
    assert isinstance(access, AwsKeys)
    assert (access.key_id, access.session) == ("ASIAEXAMPLE", "role-session")
    assert (f"{ROLE}reader", "session-token") in metadata.asked


@pytest.mark.parametrize("scheme", ["s3", "gs", "azure"])
def test_the_firmware_names_the_platform_of_a_machine(tmp_path: Path, scheme: str) -> None:
    """No other machine waits for a metadata server."""
    firmware = {
        "s3": ("sys_vendor", "Amazon EC2"),
        "gs": ("product_name", "Google Compute Engine"),
        "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    }
    assert not runs_on_platform(scheme, {}, tmp_path)
    for platform, (name, value) in firmware.items():
        (tmp_path / name).write_text(f"{value}\n")
        assert runs_on_platform(scheme, {}, tmp_path) == (platform == scheme)
        (tmp_path / name).unlink()
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    assert not runs_on_platform("s3", {"AWS_EC2_METADATA_DISABLED": "true"}, tmp_path)


@pytest.mark.parametrize("source", ["s3://bucket/a", "gs://bucket/a", "azure://account/bucket/a"])
def test_a_manifests_own_endpoint_gets_no_machine_account(
    metadata: Metadata, tmp_path: Path, source: str
) -> None:
    """The account is not even requested if only the manifest names the endpoint."""
    environ = {
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url,
        "GCE_METADATA_HOST": metadata.url.partition("//")[2],
        "AZURE_POD_IDENTITY_AUTHORITY_HOST": metadata.url,
    }
    secrets = SecretResolver({}, tmp_path, environ, Redactor())
    hostile = WeightsSpec(source, auth=SourceAuthSpec(endpoint_url="http://127.0.0.1:9"))
    credential = secrets.bucket_credential(hostile)
    assert credential is None or credential.value == ""
    assert metadata.asked == []
