"""Values of secrets in AWS Secrets Manager."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.support.servers.buckets import free_port, moto
from trainctl.desired.values import SecretSpec
from trainctl.errors import SecretUnavailable, TrainctlError
from trainctl.model.redaction import Redactor
from trainctl.model.trust import Trust
from trainctl.secrets.resolver import SecretResolver
from trainctl.secrets.sources import SECRET_STORES

pytestmark = pytest.mark.integration

VALUE = "Kd4mP9sL1yB6-value"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AWS as the environment names it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-real-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield


def secrets(spec: SecretSpec) -> SecretResolver:
    return SecretResolver(
        {spec.name: spec}, Path(), os.environ, Redactor(), lambda: Trust("trust.toml")
    )


def failure(spec: SecretSpec) -> TrainctlError:
    with pytest.raises(TrainctlError) as caught:
        secrets(spec).value(spec.name)
    assert VALUE not in f"{caught.value}"
    return caught.value


def in_aws(name: str, key: str | None = None, region: str | None = None) -> SecretSpec:
    return SecretSpec("one", "aws-secrets-manager", name, key=key, region=region)


def test_secrets_of_aws(aws: None) -> None:
    """All of one, or a member; in the region that is named, else in the environment's."""
    client = boto3.client("secretsmanager", region_name="us-east-1")
    client.create_secret(Name="prod/plain", SecretString=VALUE)
    client.create_secret(Name="prod/json", SecretString=json.dumps({"token": VALUE, "n": 1}))
    client.create_secret(Name="prod/bytes", SecretBinary=b"bytes")
    there = boto3.client("secretsmanager", region_name="eu-west-1")
    there.create_secret(Name="there", SecretString=VALUE)

    assert secrets(in_aws("prod/plain")).value("one") == VALUE
    assert secrets(in_aws("prod/json", "token")).value("one") == VALUE
    assert secrets(in_aws("there", region="eu-west-1")).value("one") == VALUE
    assert "'there' not found in AWS Secrets Manager" in failure(in_aws("there")).summary
    assert "not a JSON object with text under 'n'" in failure(in_aws("prod/json", "n")).summary
    assert "not a JSON object" in failure(in_aws("prod/plain", "token")).summary
    assert "is not text" in failure(in_aws("prod/bytes")).summary


def test_aws_that_does_not_answer_withholds_a_secret(
    aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was asked and doesn't give it is told from what isn't there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    error = failure(in_aws("prod/plain", region="us-east-1"))
    assert isinstance(error, SecretUnavailable)
    assert "AWS Secrets Manager is unreachable" in error.summary


def test_storing_in_aws(aws: None) -> None:
    """Made where there is none, a new version where there is one; other members of an object stay."""
    store = SECRET_STORES["aws-secrets-manager"]
    plain, part = in_aws("new/plain"), in_aws("new/json", "token")
    assert store.look(plain) is None
    first = store.put(plain, VALUE)
    second = store.put(plain, VALUE + "2")
    kept = store.look(plain)
    assert kept is not None
    assert (kept.value, kept.version) == (VALUE + "2", second)
    assert first != second

    boto3.client("secretsmanager").create_secret(Name="new/json", SecretString='{"other": "x"}')
    store.put(part, VALUE)
    assert secrets(part).value("one") == VALUE
    assert secrets(SecretSpec("o", "aws-secrets-manager", "new/json", key="other", redact=False)).value("o") == "x"  # fmt: skip
    with pytest.raises(TrainctlError, match="not a JSON object"):
        store.put(in_aws("new/plain", "token"), VALUE)
