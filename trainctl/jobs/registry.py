"""Who asks a private registry for an image: ``image.docker_auth`` made into a user and a password."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from trainctl.base.protocol.code import Login
from trainctl.errors import TrainctlError, missing_extra
from trainctl.model.redaction import Redactor

"""``registry``, ``username``, ``password``."""

Value = Callable[[str], str]
"""The value of a secret by its name."""

_KEYS = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})
GOOGLES = re.compile(r"(?:[a-z]+\.)?gcr\.io|[a-z0-9-]+-docker\.pkg\.dev")
ECR = re.compile(r"\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
"""Registries of Google Cloud, and of AWS with their region."""


def registry_login(image: Mapping[str, Any], value: Value, redactor: Redactor) -> Login | None:
    """The login for a job's image; None where its registry asks for none. TrainctlError says what is wrong with the secret."""
    auth = image.get("docker_auth")
    if not auth:
        return None
    username, password = _METHODS[auth["auth_method"]](auth, value)
    redactor.register(password)
    return {"registry": str(auth["registry"]), "username": username, "password": password}


def registry_secrets(auth: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the secrets that a ``docker_auth`` uses."""
    references = (
        reference["secret"]
        for block in auth.values()
        if isinstance(block, dict)
        for reference in block.values()
        if isinstance(reference, dict) and "secret" in reference
    )
    return tuple(sorted(set(references)))


def _registry_secret(auth: Mapping[str, Any], value: Value) -> tuple[str, str]:
    name = auth["registry_secret_docker_auth"]["secret_ref"]["secret"]
    username, colon, password = value(name).strip().partition(":")
    if not (username and colon and password):
        raise TrainctlError(
            f"secret {name!r} is no login to {auth['registry']}",
            "It must hold the user's name, a colon and the password, as plain text.",
            code="no-registry-login",
        )
    return username, password


def _service_account(auth: Mapping[str, Any], value: Value) -> tuple[str, str]:
    block = auth["gcp_service_account_json_docker_auth"]
    return "_json_key", value(block["service_account_json_secret_ref"]["secret"])


def _access_key(auth: Mapping[str, Any], value: Value) -> tuple[str, str]:
    block = auth["aws_iam_docker_auth"]
    region = _region_of(auth)
    keys = {
        "aws_access_key_id": value(block["access_key_secret_ref"]["secret"]),
        "aws_secret_access_key": value(block["secret_access_key_secret_ref"]["secret"]),
    }
    return _login_of_aws(auth, keys, region)


def _role(auth: Mapping[str, Any], value: Value) -> tuple[str, str]:
    from trainctl.objects import aws

    region = _region_of(auth)
    if auth["auth_method"] == "AWS_OIDC":
        block, ask = auth["aws_oidc_docker_auth"], aws.assume_role_by_identity
    else:
        block, ask = auth["aws_assume_role_docker_auth"], aws.assume_role
    granted = json.loads(ask(block["role_arn"], block["region"]).value)
    keys = {name: one for name, one in granted.items() if name in _KEYS}
    return _login_of_aws(auth, keys, region)


def _federated(auth: Mapping[str, Any], value: Value) -> tuple[str, str]:
    host = registry_host(str(auth["registry"]))
    if not GOOGLES.fullmatch(host):
        raise TrainctlError(
            f"{auth['registry']} is no registry of Google Cloud",
            "Write REGION-docker.pkg.dev, or use REGISTRY_SECRET.",
            code="no-registry-login",
        )
    from trainctl.objects.google import federated_token

    block = auth["gcp_oidc_docker_auth"]
    granted = federated_token(block["workload_identity_provider"], block["service_account"])
    return "oauth2accesstoken", str(json.loads(granted.value)["access_token"])


def _region_of(auth: Mapping[str, Any]) -> str:
    """The region of a registry of AWS; what AWS grants must go to no other."""
    region = ECR.fullmatch(registry_host(str(auth["registry"])))
    if region is None:
        raise TrainctlError(
            f"{auth['registry']} is no registry of AWS",
            "Write ACCOUNT.dkr.ecr.REGION.amazonaws.com, or use REGISTRY_SECRET.",
            code="no-registry-login",
        )
    return region[1]


def _login_of_aws(auth: Mapping[str, Any], keys: Mapping[str, str], region: str) -> tuple[str, str]:
    """AWS gives a password for twelve hours; the key itself stays here."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise missing_extra(auth["auth_method"], "boto3", "aws") from None
    try:
        answer = boto3.client("ecr", region_name=region, **keys).get_authorization_token()
        token = base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode()
    except (BotoCoreError, ClientError) as error:
        raise TrainctlError(
            f"AWS gives no login to {auth['registry']}", str(error), code="no-registry-login"
        ) from None
    username, _, password = token.partition(":")
    return username, password


def registry_host(registry: str) -> str:
    """The host of a registry as ``docker_auth`` names it."""
    return registry.removeprefix("https://").partition("/")[0]


_METHODS: Mapping[str, Callable[[Mapping[str, Any], Value], tuple[str, str]]] = {
    "REGISTRY_SECRET": _registry_secret,
    "GCP_SERVICE_ACCOUNT_JSON": _service_account,
    "AWS_IAM": _access_key,
    "AWS_OIDC": _role,
    "AWS_ASSUME_ROLE": _role,
    "GCP_OIDC": _federated,
}
