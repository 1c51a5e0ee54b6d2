"""Logins to registries of AWS, by a key or a role, with a stand-in for AWS on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from trainctl.jobs.images.registry import registry_login
from trainctl.model.json_codec import from_json
from trainctl.model.redaction import Redactor
from trainctl.model.specs.job_spec import DockerAuthSpec

pytestmark = pytest.mark.integration

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
VALUES = {"id": "AKIAIOSFODNN7EXAMPLE", "secret": "not-a-real-secret-key"}


def login(auth: dict[str, Any], redactor: Redactor) -> Any:
    """The login that a job's ``docker_auth`` gives."""
    return registry_login(from_json(DockerAuthSpec, auth), VALUES.__getitem__, redactor)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for AWS on loopback."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    yield
    server.stop()


def test_aws_gives_a_password_for_a_key(aws: None) -> None:
    """What goes to the node is AWS's own short-lived password, and not the key; it is masked from then on."""
    redactor = Redactor()
    found = login(
        {
            "auth_method": "AWS_IAM",
            "registry": ECR,
            "aws_iam_docker_auth": {
                "access_key_secret_ref": {"secret": "id"},
                "secret_access_key_secret_ref": {"secret": "secret"},
            },
        },
        redactor,
    )

    assert (found["registry"], found["username"]) == (ECR, "AWS")
    assert found["password"] not in VALUES.values()
    assert redactor.redact(f"it is {found['password']}!") == "it is (redacted)!"


@pytest.mark.parametrize("method", ["AWS_OIDC", "AWS_ASSUME_ROLE"])
def test_aws_gives_a_password_for_a_role(
    aws: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    """The role is assumed by an identity token or by the operator's own key; what goes to the node is the short-lived password."""
    (tmp_path / "token").write_text("header.claims.signature")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", VALUES["id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", VALUES["secret"])

    block = {"role_arn": "arn:aws:iam::123456789012:role/puller", "region": "eu-west-1"}
    auth = {"auth_method": method, "registry": ECR, f"{method.lower()}_docker_auth": block}
    found = login(auth, Redactor())

    assert (found["registry"], found["username"]) == (ECR, "AWS")
    assert found["password"]
