"""Logins to private registries, from ``image.docker_auth``."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.protocol.host import RegistryLogin
from trainctl.errors import TrainctlError, missing_extra
from trainctl.model.specs.image import DockerAuth

Value = Callable[[str], str]
"""Return the value of a secret by name."""

_KEYS = frozenset({"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})
GOOGLE_REGISTRY = compile_lazily(r"(?:[a-z]+\.)?gcr\.io|[a-z0-9-]+-docker\.pkg\.dev")
ECR_REGISTRY = compile_lazily(r"\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
"""Registries of Google Cloud, and of AWS with their region."""


def registry_login(auth: DockerAuth, value: Value, mask: Callable[[str], object]) -> RegistryLogin:
    """Return user and password, masked, for a registry; raise TrainctlError if not granted."""
    if block := auth.registry_secret_docker_auth:
        name = block.secret_ref.secret
        username, colon, password = value(name).strip().partition(":")
        if not (username and colon and password):
            raise TrainctlError(
                f"secret {name!r} is not a login to {auth.registry}",
                "Store the user name, a colon and the password, as plain text.",
                code="no-registry-login",
            )
    elif account := auth.gcp_service_account_json_docker_auth:
        username = "_json_key"
        password = value(account.service_account_json_secret_ref.secret)
    elif federated := auth.gcp_oidc_docker_auth:
        if not GOOGLE_REGISTRY.fullmatch(registry_host(auth.registry)):
            raise TrainctlError(
                f"{auth.registry} is not a registry of Google Cloud",
                "Use REGION-docker.pkg.dev, or auth_method REGISTRY_SECRET.",
                code="no-registry-login",
            )
        from trainctl.buckets.logins import federated_token

        token = federated_token(federated.workload_identity_provider, federated.service_account)
        username, password = "oauth2accesstoken", str(json.loads(token.value)["access_token"])
    else:
        username, password = _aws_login(auth, value)
    mask(password)
    return {"registry": auth.registry, "username": username, "password": password}


def _aws_login(auth: DockerAuth, value: Value) -> tuple[str, str]:
    """Exchange a key for a password that is valid for twelve hours."""
    match = ECR_REGISTRY.fullmatch(registry_host(auth.registry))
    if match is None:  # AWS credentials must go to no other registry
        raise TrainctlError(
            f"{auth.registry} is not a registry of AWS",
            "Use ACCOUNT.dkr.ecr.REGION.amazonaws.com, or auth_method REGISTRY_SECRET.",
            code="no-registry-login",
        )
    if key := auth.aws_iam_docker_auth:
        keys = {
            "aws_access_key_id": value(key.access_key_secret_ref.secret),
            "aws_secret_access_key": value(key.secret_access_key_secret_ref.secret),
        }
    else:
        from trainctl.buckets import logins

        if role := auth.aws_oidc_docker_auth:
            credential = logins.assume_role_by_identity(role.role_arn, role.region)
        elif role := auth.aws_assume_role_docker_auth:
            credential = logins.assume_role(role.role_arn, role.region)
        else:
            raise ValueError(auth.auth_method)
        keys = {name: text for name, text in json.loads(credential.value).items() if name in _KEYS}
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise missing_extra(auth.auth_method, "boto3", "aws") from None
    try:
        response = boto3.client("ecr", region_name=match[1], **keys).get_authorization_token()
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
