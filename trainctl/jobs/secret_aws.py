"""Secrets kept in AWS Secrets Manager: https://docs.aws.amazon.com/secretsmanager/latest/apireference/.

Credential, region and endpoint are those that boto3 finds for the operator; a manifest names the secret and its region only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trainctl.desired.values import SecretSpec
from trainctl.errors import TrainctlError
from trainctl.jobs.secret_errors import (
    missing_error,
    missing_package_error,
    unavailable_error,
    unusable_error,
)

_SECONDS = 20.0
_NOT_FOUND = "ResourceNotFoundException"


@dataclass(frozen=True, slots=True)
class AwsSecretVersion:
    """What is stored now, whole, and the id of that version."""

    text: str
    version: str


def value_of(spec: SecretSpec) -> str:
    """The current value; with ``key`` that member of it."""
    found = read_stored(spec)
    if found is None:
        raise missing_error(
            spec,
            f"{spec.source!r} not found in AWS Secrets Manager",
            f"Check the name and region, or store it: trainctl secrets push {spec.name}",
        )
    value = member(spec, found.text)
    if not value:
        raise unusable_error(
            spec,
            f"{spec.source!r} is not a JSON object with text under {spec.key!r}",
            "Store such an object, or remove 'key' to use the complete value.",
        )
    return value


def read_stored(spec: SecretSpec) -> AwsSecretVersion | None:
    """What is stored under the secret's name; None where nothing is."""
    try:
        answer = _ask(spec, "get_secret_value", SecretId=spec.source)
    except _SecretNotFound:
        return None
    text = answer.get("SecretString")
    if not isinstance(text, str):
        raise unusable_error(
            spec,
            f"{spec.source!r} in AWS Secrets Manager is not text",
            "Store it as SecretString.",
        )
    return AwsSecretVersion(text, str(answer["VersionId"]))


def member(spec: SecretSpec, text: str) -> str | None:
    """What the secret means of what is stored: all of it, or with ``key`` that member; None where it has none."""
    if spec.key is None:
        return text
    value = _object(text).get(spec.key)
    return value if isinstance(value, str) else None


def store(spec: SecretSpec, value: str, before: AwsSecretVersion | None) -> str:
    """Store a value, other members beside ``key`` kept; the id of the version that it is."""
    text = value
    if spec.key is not None:
        members = _object(before.text) if before else {}
        if before and not members:
            raise unusable_error(
                spec,
                f"{spec.source!r} is not a JSON object, so {spec.key!r} can't be set",
                "Remove 'key' to replace the complete value.",
            )
        text = json.dumps({**members, spec.key: value})
    if before is None:
        answer = _ask(spec, "create_secret", Name=spec.source, SecretString=text)
    else:
        answer = _ask(spec, "put_secret_value", SecretId=spec.source, SecretString=text)
    return str(answer["VersionId"])


class _SecretNotFound(Exception):
    """AWS has no such secret."""


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ask(spec: SecretSpec, call: str, **arguments: str) -> dict[str, Any]:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,  # noqa: A004  not of the builtin's kind
            HTTPClientError,
        )
    except ImportError:
        raise missing_package_error(spec, "AWS Secrets Manager", "aws") from None
    config = Config(
        connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 3}
    )
    try:
        client = boto3.client("secretsmanager", region_name=spec.region, config=config)
        answer: dict[str, Any] = getattr(client, call)(**arguments)
    except ClientError as error:
        kind = str(error.response.get("Error", {}).get("Code", ""))
        if kind == _NOT_FOUND:
            raise _SecretNotFound from None
        raise _refused(spec, kind) from None
    except (ConnectionError, HTTPClientError) as error:
        raise unavailable_error(spec, "AWS Secrets Manager timed out", str(error)) from None
    except BotoCoreError as error:
        raise missing_error(spec, "AWS Secrets Manager is unreachable", str(error)) from None
    return answer


def _refused(spec: SecretSpec, kind: str) -> TrainctlError:
    return unavailable_error(
        spec,
        f"permission denied by AWS Secrets Manager: {spec.source!r} ({kind})",
        "Check that this account has access.",
    )
