"""AWS credentials from boto3: the default chain and roles."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from trainctl.buckets.token_requests import (
    CONNECT_SECONDS,
    SILENCE_SECONDS,
    identity_token,
    no_credential_error,
    token_errors,
)
from trainctl.plugin_api.sources import SourceCredential

_AUDIENCE = "sts.amazonaws.com"
_ATTEMPTS = 3


def default_aws_credential(origin: str) -> SourceCredential:
    """Return boto3's default credential."""
    with token_errors("AWS", origin):
        session = _session()
        credentials = session.get_credentials()
        frozen = credentials.get_frozen_credentials() if credentials else None
    if frozen is None or not frozen.access_key:
        raise no_credential_error("AWS", origin)
    # botocore renews a session some minutes before it expires
    keys = (
        frozen.access_key,
        frozen.secret_key,
        frozen.token,
        getattr(credentials, "_expiry_time", None),
    )
    return _credential(keys, session.region_name, origin, partial(default_aws_credential, origin))


def assume_role(
    role_arn: str, region: str, environ: Mapping[str, str] = os.environ
) -> SourceCredential:
    """Assume a role with the default credential; SourceDenied if AWS refuses."""
    external = environ.get("TRAINCTL_AWS_EXTERNAL_ID")
    extra = {"ExternalId": external} if external else {}
    return _role(role_arn, region, lambda sts, role: sts.assume_role(**role, **extra))


def assume_role_by_identity(
    role_arn: str, region: str, environ: Mapping[str, str] = os.environ
) -> SourceCredential:
    """Assume a role with an identity token; SourceDenied if refused."""

    def request(sts: Any, role: dict[str, str]) -> Any:
        token = identity_token(_AUDIENCE, "AWS_WEB_IDENTITY_TOKEN_FILE", environ)
        return sts.assume_role_with_web_identity(**role, WebIdentityToken=token)

    return _role(role_arn, region, request, signed=False)


def _role(
    role_arn: str,
    region: str,
    request: Callable[[Any, dict[str, str]], Any],
    *,
    signed: bool = True,
) -> SourceCredential:
    origin = f"role {role_arn}"
    name = re.sub(r"[^\w+=,.@-]", "-", f"trainctl-{os.uname().nodename}")[:64]
    with token_errors("AWS", origin):
        sts = _session(signed=signed).client("sts", region_name=region)
        response = request(sts, {"RoleArn": role_arn, "RoleSessionName": name})["Credentials"]
    keys = [response.get(key) for key in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
    renew = partial(_role, role_arn, region, request, signed=signed)
    return _credential((*keys, response.get("Expiration")), region, origin, renew)


def _credential(
    keys: tuple[Any, ...], region: str | None, origin: str, renew: Callable[[], SourceCredential]
) -> SourceCredential:
    *secrets, expires_at = keys
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    document = dict(zip(names, secrets, strict=True), aws_region=region)
    if isinstance(expires_at, datetime):
        document["expires_at"] = expires_at.isoformat()
    text = json.dumps({name: value for name, value in document.items() if value})
    return SourceCredential(text, origin, renew=renew)


def _session(*, signed: bool = True) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.session import get_session

    core = get_session()
    unsigned = {} if signed else {"signature_version": UNSIGNED}
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=SILENCE_SECONDS,
        retries={"total_max_attempts": _ATTEMPTS},
        **unsigned,
    )
    core.set_default_client_config(config)
    return boto3.Session(botocore_session=core)
