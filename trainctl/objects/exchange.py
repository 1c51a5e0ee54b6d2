"""Credentials that are asked for: a role that is assumed, an identity token that is exchanged. All end, and can be asked for again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from trainctl.base.certificates import trusting
from trainctl.errors import SourceBusy, SourceDenied, SourceError, SourceUnreachable, TrainctlError
from trainctl.objects.access import AzurePrincipal
from trainctl.objects.place import authority_of
from trainctl.objects.straight import opener
from trainctl.spi.sources import Credential

_AWS_AUDIENCE = "sts.amazonaws.com"
_SILENCE_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_TRIES = 3
_FORM = "application/x-www-form-urlencoded"


def assume_role(role_arn: str, region: str, environ: Mapping[str, str] = os.environ) -> Credential:
    """A session of the role, by the credential that boto3 finds in its usual places. SourceDenied where AWS refuses."""
    origin = f"role {role_arn}"

    def ask() -> dict[str, Any]:
        extra = {"ExternalId": one} if (one := environ.get("TRAINCTL_AWS_EXTERNAL_ID")) else {}
        answer: dict[str, Any] = _sts(region, signed=True).assume_role(
            RoleArn=role_arn, RoleSessionName=_session_name(), **extra
        )
        return answer

    return _of_role(ask, origin, region)


def assume_role_by_identity(
    role_arn: str, region: str, environ: Mapping[str, str] = os.environ
) -> Credential:
    """A session of the role, by an identity token. SourceDenied where AWS refuses it or there is none."""
    origin = f"role {role_arn}"

    def ask() -> dict[str, Any]:
        answer: dict[str, Any] = _sts(region, signed=False).assume_role_with_web_identity(
            RoleArn=role_arn,
            RoleSessionName=_session_name(),
            WebIdentityToken=identity_token(_AWS_AUDIENCE, "AWS_WEB_IDENTITY_TOKEN_FILE", environ),
        )
        return answer

    return _of_role(ask, origin, region)


def _of_role(ask: Callable[[], dict[str, Any]], origin: str, region: str) -> Credential:
    keys = _asked(ask, origin)["Credentials"]
    return _aws_credential(
        keys["AccessKeyId"],
        keys["SecretAccessKey"],
        keys.get("SessionToken"),
        keys.get("Expiration"),
        region,
        origin,
        partial(_of_role, ask, origin, region),
    )


def aws_session(told: str) -> Credential:
    """What boto3 finds: a profile, its single sign-on, a container's or a role's credential. ``told`` says why it is asked."""
    boto3 = _boto3(told)
    from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound

    try:
        session = boto3.Session()
        found = session.get_credentials()
        frozen = found.get_frozen_credentials() if found else None
    except (BotoCoreError, ClientError) as error:
        code = "missing-secret" if isinstance(error, ProfileNotFound) else None
        raise SourceDenied(f"{told}: AWS gives no credential", str(error), code=code) from None
    if frozen is None or not frozen.access_key:
        raise SourceDenied(
            f"{told}: there is no credential of AWS",
            "Check it, or log in: aws sso login.",
            code="missing-secret",
        )
    # Botocore renews what ends by itself, some minutes before; so it is asked again after a while.
    ends = getattr(found, "_expiry_time", None)
    return _aws_credential(
        frozen.access_key,
        frozen.secret_key,
        frozen.token,
        ends,
        session.region_name,
        told,
        partial(aws_session, told),
    )


def exchange_for_google(
    provider: str, service_account: str, environ: Mapping[str, str] = os.environ
) -> Credential:
    """A token of the service account, by an identity token of a workload identity pool. SourceDenied where Google refuses.

    ``provider`` is ``projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/NAME``. The servers are Google's
    unless ``GOOGLE_STS_URL`` and ``GOOGLE_IAM_CREDENTIALS_URL`` name others.
    """
    origin = f"service account {service_account}"
    audience = f"//iam.googleapis.com/{provider.removeprefix('//iam.googleapis.com/')}"
    sts = environ.get("GOOGLE_STS_URL") or "https://sts.googleapis.com"
    iam = environ.get("GOOGLE_IAM_CREDENTIALS_URL") or "https://iamcredentials.googleapis.com"
    identity = identity_token(f"https:{audience}", "GOOGLE_OIDC_TOKEN_FILE", environ)
    token = _post(
        f"{sts}/v1/token",
        {
            "grantType": "urn:ietf:params:oauth:grant-type:token-exchange",
            "audience": audience,
            "scope": "https://www.googleapis.com/auth/cloud-platform",
            "requestedTokenType": "urn:ietf:params:oauth:token-type:access_token",
            "subjectTokenType": "urn:ietf:params:oauth:token-type:jwt",
            "subjectToken": identity,
        },
        None,
        origin,
    )
    granted = _post(
        f"{iam}/v1/projects/-/serviceAccounts/{quote(service_account, safe='@')}:generateAccessToken",
        {"scope": ["https://www.googleapis.com/auth/cloud-platform"]},
        str(token.get("access_token", "")),
        origin,
    )
    document = {
        "access_token": granted.get("accessToken"),
        "expires_at": granted.get("expireTime"),
    }
    renew = partial(exchange_for_google, provider, service_account, environ)
    return Credential(json.dumps(document), origin, renew=renew)


def token_of_service_account(document: str, origin: str) -> Credential:
    """An access token for a service account's key, by google-auth. SourceDenied where Google refuses."""
    return _google_token(json.loads(document), origin)


def token_of_principal(
    principal: AzurePrincipal, origin: str, environ: Mapping[str, str] = os.environ
) -> Credential:
    """An access token for a service principal of Entra ID, by its secret. SourceDenied where Entra refuses.

    https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow
    """
    form = {
        "grant_type": "client_credentials",
        "client_id": principal.client,
        "client_secret": principal.secret,
        "scope": "https://storage.azure.com/.default",
    }
    url = f"{authority_of(environ)}/{quote(principal.tenant, safe='')}/oauth2/v2.0/token"
    found = _fetch(url, urlencode(form).encode(), None, origin, _FORM)
    document, lasts = {"access_token": found.get("access_token")}, str(found.get("expires_in"))
    if re.fullmatch(r"[0-9]{1,9}", lasts):
        ends = datetime.now(UTC) + timedelta(seconds=int(lasts))
        document["expires_at"] = ends.isoformat()
    renew = partial(token_of_principal, principal, origin, environ)
    return Credential(json.dumps(document), origin, renew=renew)


def google_default(origin: str) -> Credential:
    """A token for what Google's tools keep: a user's login, a federated or an impersonated account."""
    return _google_token(None, origin)


def _google_token(account: dict[str, Any] | None, origin: str) -> Credential:
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
        from google.oauth2.service_account import Credentials
    except ImportError:
        raise TrainctlError(
            f"{origin} needs google-auth, which is not installed",
            "Install it: pip install 'trainctl[gcp]'.",
            code="missing-extra",
        ) from None
    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    try:
        if account is None:
            found: Any = google.auth.default(scopes=scopes)[0]
        else:
            found = Credentials.from_service_account_info(account, scopes=scopes)  # type: ignore[no-untyped-call]
        found.refresh(Request())
    except (GoogleAuthError, ValueError) as error:
        raise SourceDenied(
            f"{origin}: Google gives no token ({type(error).__name__})",
            "It may have been deleted or disabled; make a new key, or log in again.",
        ) from None
    ends = found.expiry.replace(tzinfo=UTC).isoformat() if found.expiry else None
    document = {"access_token": found.token, **({"expires_at": ends} if ends else {})}
    return Credential(json.dumps(document), origin, renew=partial(_google_token, account, origin))


def identity_token(audience: str, variable: str, environ: Mapping[str, str]) -> str:
    """Who this machine is, as its surroundings attest it: a file that ``variable`` names, else GitHub Actions.

    SourceDenied where nothing does.
    """
    if path := environ.get(variable):
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise SourceDenied(
                f"{variable} names {path}, which can't be read as a token",
                "Name the file that your platform keeps the identity token in.",
                code="missing-secret",
            ) from None
    url, token = (environ.get(f"ACTIONS_ID_TOKEN_REQUEST_{one}") for one in ("URL", "TOKEN"))
    if url and token:
        answer = _fetch(f"{url}&audience={quote(audience, safe='')}", None, token, "GitHub Actions")
        return str(answer.get("value", ""))
    raise SourceDenied(
        "nothing here says who this machine is: there is no identity token",
        f"Set {variable} to the file that holds one, or in GitHub Actions give the job `permissions: {{id-token: write}}`.",
        code="missing-secret",
    )


def _aws_credential(
    key_id: str,
    secret: str,
    session: str | None,
    ends: datetime | None,
    region: str | None,
    origin: str,
    renew: Callable[[], Credential],
) -> Credential:
    document = {
        "aws_access_key_id": key_id,
        "aws_secret_access_key": secret,
        "aws_session_token": session,
        "aws_region": region,
        "expires_at": ends.isoformat() if ends else None,
    }
    value = json.dumps({name: one for name, one in document.items() if one})
    return Credential(value, origin, renew=renew)


def _sts(region: str, *, signed: bool) -> Any:
    boto3 = _boto3("A role of AWS")
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_SILENCE_SECONDS,
        retries={"total_max_attempts": _TRIES},
        **({} if signed else {"signature_version": UNSIGNED}),
    )
    return boto3.client("sts", region_name=region, config=config)


def _asked(ask: Callable[[], dict[str, Any]], origin: str) -> dict[str, Any]:
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,  # noqa: A004  not of the builtin's kind
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
        ProfileNotFound,
    )

    try:
        return ask()
    except ClientError as error:
        said = error.response.get("Error", {})
        raise SourceDenied(
            f"AWS does not give {origin} ({said.get('Code', 'refused')})",
            f"{said.get('Message', '')} Check the role's trust policy, and who asks for it.".strip(),
        ) from None
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound):
        raise SourceDenied(
            f"there is no credential of AWS here to ask for {origin} with",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; or log in: aws sso login.",
            code="missing-secret",
        ) from None
    except (ConnectionError, HTTPClientError) as error:
        raise SourceUnreachable(f"AWS can't be asked for {origin}", str(error)) from None
    except BotoCoreError as error:
        raise SourceDenied(f"AWS does not give {origin}", str(error)) from None


def _boto3(who: str) -> Any:
    try:
        import boto3
    except ImportError:
        raise TrainctlError(
            f"{who} needs boto3, which is not installed",
            "Install it: pip install 'trainctl[aws]'.",
            code="missing-extra",
        ) from None
    return boto3


def _session_name() -> str:
    return re.sub(r"[^\w+=,.@-]", "-", f"trainctl-{os.uname().nodename}")[:64]


def _post(url: str, body: Mapping[str, Any], token: str | None, origin: str) -> dict[str, Any]:
    return _fetch(url, json.dumps(body).encode(), token, origin)


def _fetch(
    url: str, body: bytes | None, token: str | None, origin: str, kind: str = "application/json"
) -> dict[str, Any]:
    import ssl
    import urllib.error  # loaded by who asks
    import urllib.request

    headers = {"Content-Type": kind, "Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - the platform's, or the environment's
    host = request.host
    try:
        by_tls = urllib.request.HTTPSHandler(context=trusting())
        with opener(by_tls).open(request, timeout=_SILENCE_SECONDS) as answer:
            found = json.loads(answer.read(2**20))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "reason", None)
        if isinstance(why, ssl.SSLCertVerificationError):
            raise SourceError(
                f"{origin}: the certificate of {host} is not trusted ({why.verify_message})",
                "Name the certificates to trust in SSL_CERT_FILE.",
                code="untrusted-certificate",
            ) from None
        if not isinstance(error, urllib.error.HTTPError):
            raise SourceUnreachable(
                f"{origin}: {host} could not be asked",
                "Check the network and, behind a proxy, HTTPS_PROXY.",
            ) from None
        error.close()
        made = SourceBusy if error.code == 429 or error.code >= 500 else SourceDenied
        raise made(
            f"{origin}: {host} answered {error.code}",
            "Check the secret, or the pool, its provider and which identities may use the account.",
        ) from None
    return found if isinstance(found, dict) else {}
