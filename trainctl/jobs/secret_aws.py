"""Secrets in AWS Secrets Manager, with the default credential chain of boto3.

https://docs.aws.amazon.com/secretsmanager/latest/apireference/
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
    """The complete stored text and its version id."""

    text: str
    version: str


def value_of(spec: SecretSpec) -> str:
    """Read the value; raise TrainctlError if there is none."""
    stored = read_stored(spec)
    if stored is None:
        raise missing_error(
            spec,
            f"{spec.source!r} not found in AWS Secrets Manager",
            f"Check the name and region, or store it: trainctl secrets push {spec.name}",
        )
    value = member(spec, stored.text)
    if not value:
        raise unusable_error(
            spec,
            f"{spec.source!r} is not a JSON object with text under {spec.key!r}",
            "Store such an object, or remove 'key' to use the complete value.",
        )
    return value


def read_stored(spec: SecretSpec) -> AwsSecretVersion | None:
    """Read the stored text, None if there is none."""
    try:
        response = _call(spec, "get_secret_value", SecretId=spec.source)
    except _SecretNotFound:
        return None
    text = response.get("SecretString")
    if not isinstance(text, str):
        raise unusable_error(
            spec,
            f"{spec.source!r} in AWS Secrets Manager is not text",
            "Store it as SecretString.",
        )
    return AwsSecretVersion(text, str(response["VersionId"]))


def member(spec: SecretSpec, text: str) -> str | None:
    """Return the stored text, or its member ``key``; None if there is none."""
    if spec.key is None:
        return text
    value = _object(text).get(spec.key)
    return value if isinstance(value, str) else None


def store(spec: SecretSpec, value: str, before: AwsSecretVersion | None) -> str:
    """Store a value, keeping members other than ``key``; return the version id."""
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
        response = _call(spec, "create_secret", Name=spec.source, SecretString=text)
    else:
        response = _call(spec, "put_secret_value", SecretId=spec.source, SecretString=text)
    return str(response["VersionId"])


class _SecretNotFound(Exception):
    """The secret doesn't exist."""


def _object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _call(spec: SecretSpec, method: str, **arguments: str) -> dict[str, Any]:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,  # noqa: A004
            HTTPClientError,
        )
    except ImportError:
        raise missing_package_error(spec, "AWS Secrets Manager", "aws") from None
    config = Config(
        connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 3}
    )
    try:
        client = boto3.client("secretsmanager", region_name=spec.region, config=config)
        response: dict[str, Any] = getattr(client, method)(**arguments)
    except ClientError as error:
        kind = str(error.response.get("Error", {}).get("Code", ""))
        if kind == _NOT_FOUND:
            raise _SecretNotFound from None
        raise _refused(spec, kind) from None
    except (ConnectionError, HTTPClientError) as error:
        raise unavailable_error(spec, "AWS Secrets Manager timed out", str(error)) from None
    except BotoCoreError as error:
        raise missing_error(spec, "AWS Secrets Manager is unreachable", str(error)) from None
    return response


def _refused(spec: SecretSpec, kind: str) -> TrainctlError:
    return unavailable_error(
        spec,
        f"permission denied by AWS Secrets Manager: {spec.source!r} ({kind})",
        "Check that this account has access.",
    )
