"""Accounts of machines, from metadata servers on loopback that the platforms' own variables name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trainctl.jobs.secrets import SecretResolver
from trainctl.model.redaction import Redactor
from trainctl.model.specs.resource import SourceAuthSpec, WeightsSpec
from trainctl.objects.credentials import AwsKeys, BearerToken, parse_credential
from trainctl.objects.default_chain import default_credential, runs_on_platform
from trainctl.plugin_api.sources import SourceCredential

ROLE = "/latest/meta-data/iam/security-credentials/"


@dataclass
class Metadata:
    """What a machine is told, by path; every request as method, path and the header that proves that it was meant."""

    url: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    state = Metadata()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            named = (
                "Metadata-Flavor", "X-IDENTITY-HEADER", "Metadata", "Authorization", "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds",
            )  # fmt: skip
            meant = next((one for name in named if (one := self.headers.get(name))), "")
            state.asked.append((path, meant))
            body = state.answers.get(path, "").encode()
            self.send_response(200 if body and meant else 404)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET  # noqa: N815  the name is the library's

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()


def found_by(
    scheme: str, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> SourceCredential | None:
    """What is found if the process has this environment, which the libraries read themselves."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if host := environ.get("GCE_METADATA_HOST"):  # which google-auth reads when it is imported
        monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", host)
    return default_credential(scheme, "account", environ)


def test_googles_machine_has_a_service_account(
    metadata: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token opens buckets until it ends, and can be renewed."""
    account = "/computeMetadata/v1/instance/service-accounts/default/"
    metadata.answers[account] = json.dumps({"email": "default", "scopes": ["cloud-platform"]})
    environ = {"HOME": str(tmp_path), "GCE_METADATA_HOST": metadata.url.partition("//")[2]}

    def grant(token: str) -> None:
        granted = {"access_token": token, "expires_in": 3599}
        metadata.answers[f"{account}token"] = json.dumps(granted)

    grant("ya29.machine")
    found = found_by("gs", monkeypatch, environ)
    assert found is not None
    access = parse_credential("gs", found.value, found.origin)
    assert isinstance(access, BearerToken)
    assert (access.token, access.expires_at is not None) == ("ya29.machine", True)
    assert found.renew is not None
    grant("ya29.next")
    assert "ya29.next" in found.renew().value
    assert {meant for _, meant in metadata.asked} == {"Google"}


def test_azures_machine_has_an_identity(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = "/metadata/identity/oauth2/token"
    metadata.answers[path] = json.dumps(
        {"access_token": "eyJ.machine", "expires_in": "86399", "expires_on": "4102444800"}
    )
    environ = {"AZURE_POD_IDENTITY_AUTHORITY_HOST": metadata.url, "HOME": str(tmp_path)}
    found = found_by("azure", monkeypatch, environ)
    assert found is not None
    access = parse_credential("azure", found.value, found.origin)
    assert isinstance(access, BearerToken)
    assert access.token == "eyJ.machine"
    assert set(metadata.asked) == {(path, "true")}


def test_amazons_machine_has_a_role(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the second version of its service, whose sessions are asked for first."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    metadata.answers |= {
        "/latest/api/token": "session-token",
        ROLE: "reader",
        f"{ROLE}reader": json.dumps(
            {
                "Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "ASIAEXAMPLE", "SecretAccessKey": "role-secret-key",
                "Token": "role-session", "LastUpdated": "2026-11-22T00:00:00Z", "Expiration": "2099-11-22T00:00:00Z",
            }
        ),
    }  # fmt: skip
    environ = {"HOME": str(tmp_path), "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{metadata.url}/"}
    found = found_by("s3", monkeypatch, environ)
    assert found is not None
    access = parse_credential("s3", found.value, found.origin)
    assert isinstance(access, AwsKeys)
    assert (access.key_id, access.session) == ("ASIAEXAMPLE", "role-session")
    assert (f"{ROLE}reader", "session-token") in metadata.asked


@pytest.mark.parametrize("scheme", ["s3", "gs", "azure"])
def test_no_other_machine_is_asked(metadata: Metadata, tmp_path: Path, scheme: str) -> None:
    """A metadata server is asked only if the firmware names its platform."""
    says = {
        "s3": ("sys_vendor", "Amazon EC2"),
        "gs": ("product_name", "Google Compute Engine"),
        "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    }
    assert not runs_on_platform(scheme, {}, tmp_path)
    for one, (name, value) in says.items():
        (tmp_path / name).write_text(f"{value}\n")
        assert runs_on_platform(scheme, {}, tmp_path) == (one == scheme)
        (tmp_path / name).unlink()
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    assert not runs_on_platform("s3", {"AWS_EC2_METADATA_DISABLED": "true"}, tmp_path)


@pytest.mark.parametrize("source", ["s3://bucket/a", "gs://bucket/a", "azure://account/bucket/a"])
def test_a_manifests_own_endpoint_gets_no_machine_account(
    metadata: Metadata, tmp_path: Path, source: str
) -> None:
    """The machine's account is not even requested if only the manifest names the endpoint."""
    environ = {
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url,
        "GCE_METADATA_HOST": metadata.url.partition("//")[2],
        "AZURE_POD_IDENTITY_AUTHORITY_HOST": metadata.url,
    }
    secrets = SecretResolver({}, tmp_path, environ, Redactor())
    hostile = WeightsSpec(source, auth=SourceAuthSpec(endpoint_url="http://127.0.0.1:9"))
    found = secrets.default_bucket_credential(hostile)
    assert found is None or found.value == ""
    assert metadata.asked == []
