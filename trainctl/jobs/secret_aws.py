"""Secrets kept in AWS Secrets Manager: https://docs.aws.amazon.com/secretsmanager/latest/apireference/.

Credential, region and endpoint are those that boto3 finds for the operator; a manifest names the secret and its region only.
"""

from __future__ import annotations

from typing import Any

from trainctl.desired.values import SecretSpec
from trainctl.errors import TrainctlError

_SECONDS = 20.0


def value_of(spec: SecretSpec) -> str:
    """The current value of a secret that is text."""
    answer = _asked(spec, "get_secret_value", SecretId=spec.source)
    value = answer.get("SecretString")
    if not isinstance(value, str):
        raise TrainctlError(
            f"secret {spec.name!r}: what AWS Secrets Manager has as {spec.source!r} is not text",
            "Store it as SecretString.",
            code="unusable-secret",
        )
    return value


def _asked(spec: SecretSpec, call: str, **arguments: Any) -> dict[str, Any]:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise TrainctlError(
            f"secret {spec.name!r}: AWS Secrets Manager needs boto3, which is not installed",
            "Install it: pip install 'trainctl[aws]'.",
            code="missing-extra",
        ) from None
    config = Config(
        connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 3}
    )
    try:
        client = boto3.client("secretsmanager", region_name=spec.region, config=config)
        answer: dict[str, Any] = getattr(client, call)(**arguments)
    except ClientError as error:
        kind = error.response.get("Error", {}).get("Code", "")
        raise _refused(spec, kind) from None
    except BotoCoreError as error:
        raise TrainctlError(
            f"secret {spec.name!r}: AWS Secrets Manager can't be asked",
            str(error),
            code="missing-secret",
        ) from None
    return answer


def _refused(spec: SecretSpec, kind: str) -> TrainctlError:
    if kind == "ResourceNotFoundException":
        return TrainctlError(
            f"secret {spec.name!r}: AWS Secrets Manager has nothing as {spec.source!r}",
            f"Check name and region, or store it: trainctl secrets push {spec.name}",
            code="missing-secret",
        )
    return TrainctlError(
        f"secret {spec.name!r}: AWS Secrets Manager does not hand out {spec.source!r} ({kind})",
        "Check that this account may read it.",
        code="missing-secret",
    )
