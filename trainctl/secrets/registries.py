"""Logins to private registries, from ``image.docker_auth``."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping

from trainctl.base.protocol.host import RegistryLogin
from trainctl.errors import TrainctlError, missing_extra
from trainctl.model.redaction import Redactor
from trainctl.model.specs.image import DockerAuth, GcpOidcDockerAuth

Value = Callable[[str], str]
"""Return the value of a secret by name."""

_KEYS = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})
GOOGLE_REGISTRY = re.compile(r"(?:[a-z]+\.)?gcr\.io|[a-z0-9-]+-docker\.pkg\.dev")
ECR_REGISTRY = re.compile(r"\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
"""Registries of Google Cloud, and of AWS with their region."""


def registry_login(auth: DockerAuth, value: Value, redactor: Redactor) -> RegistryLogin:
    """Return user and password for a registry; raise TrainctlError if not granted."""
    username, password = _login(auth, value)
    redactor.register(password)
    return {"registry": auth.registry, "username": username, "password": password}


def _login(auth: DockerAuth, value: Value) -> tuple[str, str]:
    if block := auth.registry_secret_docker_auth:
        return _registry_secret(auth, block.secret_ref.secret, value)
    if account := auth.gcp_service_account_json_docker_auth:
        return "_json_key", value(account.service_account_json_secret_ref.secret)
    if federated := auth.gcp_oidc_docker_auth:
        return _federated(auth, federated)
    region = _region_of(auth)
    if key := auth.aws_iam_docker_auth:
        keys = {
            "aws_access_key_id": value(key.access_key_secret_ref.secret),
            "aws_secret_access_key": value(key.secret_access_key_secret_ref.secret),
        }
        return _aws_login(auth, keys, region)
    return _aws_login(auth, _assume_role(auth), region)


def _registry_secret(auth: DockerAuth, name: str, value: Value) -> tuple[str, str]:
    username, colon, password = value(name).strip().partition(":")
    if not (username and colon and password):
        raise TrainctlError(
            f"secret {name!r} is not a login to {auth.registry}",
            "Store the user name, a colon and the password, as plain text.",
            code="no-registry-login",
        )
    return username, password


def _assume_role(auth: DockerAuth) -> dict[str, str]:
    from trainctl.buckets import logins

    if role := auth.aws_oidc_docker_auth:
        credential = logins.assume_role_by_identity(role.role_arn, role.region)
    elif role := auth.aws_assume_role_docker_auth:
        credential = logins.assume_role(role.role_arn, role.region)
    else:
        raise ValueError(auth.auth_method)
    return {name: text for name, text in json.loads(credential.value).items() if name in _KEYS}


def _federated(auth: DockerAuth, block: GcpOidcDockerAuth) -> tuple[str, str]:
    if not GOOGLE_REGISTRY.fullmatch(registry_host(auth.registry)):
        raise TrainctlError(
            f"{auth.registry} is not a registry of Google Cloud",
            "Use REGION-docker.pkg.dev, or auth_method REGISTRY_SECRET.",
            code="no-registry-login",
        )
    from trainctl.buckets.logins import federated_token

    credential = federated_token(block.workload_identity_provider, block.service_account)
    return "oauth2accesstoken", str(json.loads(credential.value)["access_token"])


def _region_of(auth: DockerAuth) -> str:
    """Return the region of an ECR registry; AWS credentials must go to no other."""
    match = ECR_REGISTRY.fullmatch(registry_host(auth.registry))
    if match is None:
        raise TrainctlError(
            f"{auth.registry} is not a registry of AWS",
            "Use ACCOUNT.dkr.ecr.REGION.amazonaws.com, or auth_method REGISTRY_SECRET.",
            code="no-registry-login",
        )
    return match[1]


def _aws_login(auth: DockerAuth, keys: Mapping[str, str], region: str) -> tuple[str, str]:
    """Exchange a key for a password that is valid for twelve hours."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise missing_extra(auth.auth_method, "boto3", "aws") from None
    try:
        response = boto3.client("ecr", region_name=region, **keys).get_authorization_token()
        token = base64.b64decode(response["authorizationData"][0]["authorizationToken"]).decode()
    except (BotoCoreError, ClientError) as error:
        raise TrainctlError(
            f"AWS returned no login to {auth.registry}", str(error), code="no-registry-login"
        ) from None
    username, _, password = token.partition(":")
    return username, password


def registry_host(registry: str) -> str:
    """Return the host in ``docker_auth.registry``."""
    return registry.removeprefix("https://").partition("/")[0]
