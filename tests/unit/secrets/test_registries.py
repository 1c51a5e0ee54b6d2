"""Logins to registries: each way a manifest can name one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.buckets import moto
from tests.support.servers.identity_servers import POOL, identity_servers
from trainctl.errors import TrainctlError
from trainctl.model.json_codec import from_json
from trainctl.model.redaction import Redactor
from trainctl.model.specs.image import DockerAuth
from trainctl.secrets.registries import registry_login

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
VALUES = {
    "login": "me:pass:word\n",
    "bare": "only-a-password",
    "empty": "me:",
    "key": '{"private_key": "x"}',
    "id": "AKIAIOSFODNN7EXAMPLE",
    "secret": "not-a-real-secret-key",
}


def login(auth: dict[str, Any], redactor: Redactor | None = None) -> Any:
    """The login that a job's ``docker_auth`` gives."""
    parsed = from_json(DockerAuth, auth)
    return registry_login(parsed, VALUES.__getitem__, (redactor or Redactor()).register)


def by_secret(name: str) -> dict[str, Any]:
    """``docker_auth`` with a user and a password."""
    return {
        "auth_method": "REGISTRY_SECRET",
        "registry": "ghcr.io",
        "registry_secret_docker_auth": {"secret_ref": {"secret": name}},
    }


def by_access_key(registry: str = ECR) -> dict[str, Any]:
    """``docker_auth`` with an access key of AWS."""
    return {
        "auth_method": "AWS_IAM",
        "registry": registry,
        "aws_iam_docker_auth": {
            "access_key_secret_ref": {"secret": "id"},
            "secret_access_key_secret_ref": {"secret": "secret"},
        },
    }


def test_a_secret_holds_user_and_password() -> None:
    """Separated by the first colon; white space around them is not part of them."""
    assert login(by_secret("login")) == {
        "registry": "ghcr.io",
        "username": "me",
        "password": "pass:word",
    }
    for name in ("bare", "empty"):
        with pytest.raises(TrainctlError, match=rf"secret '{name}' is not a login to ghcr\.io"):
            login(by_secret(name))


def test_a_service_accounts_key_is_the_password() -> None:
    """Google's registries take it so."""
    auth = {
        "auth_method": "GCP_SERVICE_ACCOUNT_JSON",
        "registry": "europe-docker.pkg.dev",
        "gcp_service_account_json_docker_auth": {
            "service_account_json_secret_ref": {"secret": "key"}
        },
    }

    assert login(auth) == {
        "registry": "europe-docker.pkg.dev",
        "username": "_json_key",
        "password": VALUES["key"],
    }


def by_role(method: str, registry: str = ECR) -> dict[str, Any]:
    """``docker_auth`` with a role of AWS."""
    block = {"role_arn": "arn:aws:iam::123456789012:role/puller", "region": "eu-west-1"}
    return {"auth_method": method, "registry": registry, f"{method.lower()}_docker_auth": block}


ROLES = ("AWS_OIDC", "AWS_ASSUME_ROLE")


@pytest.mark.parametrize("registry", ["ghcr.io", f"{ECR}.example.org", f"x{ECR}"])
def test_aws_is_asked_for_its_own_registries_only(registry: str) -> None:
    """By a key or a role. The region is in the registry's name, which is the entire name."""
    for auth in (by_access_key(registry), *(by_role(method, registry) for method in ROLES)):
        with pytest.raises(TrainctlError, match=r"is not a registry of AWS") as refused:
            login(auth)
        assert registry in refused.value.summary


@pytest.mark.integration
@pytest.mark.parametrize("method", ["AWS_IAM", *ROLES])
def test_aws_gives_a_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str) -> None:
    """For a key, or for a role that an identity token or the operator's own key assumes. It is short-lived and masked."""
    (tmp_path / "token").write_text("header.claims.signature")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", VALUES["id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", VALUES["secret"])
    redactor = Redactor()
    with moto() as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.endpoint)
        result = login(by_access_key() if method == "AWS_IAM" else by_role(method), redactor)

    assert (result["registry"], result["username"]) == (ECR, "AWS")
    assert result["password"] not in ("", *VALUES.values())
    assert redactor.redact(f"it is {result['password']}!") == "it is (redacted)!"


def test_googles_token_is_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An identity token becomes one of the service account, for Google's registries only."""
    auth = {
        "auth_method": "GCP_OIDC",
        "registry": "europe-docker.pkg.dev",
        "gcp_oidc_docker_auth": {
            "service_account": "puller@demo.iam.gserviceaccount.com",
            "workload_identity_provider": POOL,
        },
    }
    (tmp_path / "token").write_text("header.claims.signature")
    monkeypatch.setenv("GOOGLE_OIDC_TOKEN_FILE", str(tmp_path / "token"))
    with identity_servers() as google:
        monkeypatch.setenv("GOOGLE_STS_URL", google.url)
        monkeypatch.setenv("GOOGLE_IAM_CREDENTIALS_URL", google.url)
        result = login(auth)
    assert (result["username"], result["password"]) == ("oauth2accesstoken", google.granted[-1])
    with pytest.raises(TrainctlError, match=r"ghcr\.io is not a registry of Google Cloud"):
        login({**auth, "registry": "ghcr.io"})
