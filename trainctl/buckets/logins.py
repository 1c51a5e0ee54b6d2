"""Credentials from the platforms' libraries: boto3, google-auth, azure-identity; and identity tokens.

Their exceptions are translated without their text, which may hold secrets.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

from trainctl.base.http import HttpClient, HttpError
from trainctl.base.http.refusals import server_message
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.network.tls import client_context
from trainctl.buckets.credentials import encode_token
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceUnavailable,
    SourceUnreachable,
    TrainctlError,
    missing_extra,
)
from trainctl.plugin_api.sources import SourceCredential

SILENCE_SECONDS = 30.0
CONNECT_SECONDS = 5.0
_MAX_BYTES = 2**20  # tokens have some kilobytes; more is another server
_PACKAGES = {
    "AWS": ("boto3", "aws", "Check the role's trust policy, or log in: aws sso login."),
    "Google": ("google-auth", "gcp", "Check the account and its permissions, or log in again."),
    "Azure": ("azure-identity", "azure", "Check the principal or identity, or log in: az login."),
}
_NO_CREDENTIAL_ERRORS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "DefaultCredentialsError",
)
"""Exceptions of the libraries for a missing credential."""
_ENTRA_MESSAGE = compile_lazily(r"AADSTS\d+: .*?(?=\.? Trace ID:|[\r\n]|$)")
_TOKEN = compile_lazily(r"\b(?:eyJ|ya29\.)[\w.~+/=-]+")
"""Tokens that a server may repeat."""

for _name in ("azure", "google", "msal"):  # keep unredacted warnings off stderr
    logging.getLogger(_name).addHandler(logging.NullHandler())


@contextmanager
def token_errors(platform: str, origin: str) -> Iterator[None]:
    """Translate a library's exceptions without their text, which may hold secrets; repeat the server's message."""
    package, extra, advice = _PACKAGES[platform]
    try:
        yield
    except TrainctlError:
        raise
    except ImportError:
        raise missing_extra(origin, package, extra) from None
    except Exception as error:  # noqa: BLE001 - each library has an exception tree of its own
        raise _translate(error, platform, origin, advice) from None


def _translate(error: Exception, platform: str, origin: str, advice: str) -> SourceError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return SourceError(
                f"{platform}'s certificate is not trusted ({cause.verify_message}), for {origin}",
                "Set SSL_CERT_FILE to the certificates to trust.",
                code="untrusted-certificate",
            )
        if isinstance(cause, (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError)):
            return SourceUnreachable(
                f"{platform} is unreachable for {origin}",
                "Check the network and, behind a proxy, HTTPS_PROXY.",
            )
        cause = cause.__cause__ or cause.__context__
    name, said = type(error).__name__, ""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        refusal = response.get("Error", {})
        name, said = str(refusal.get("Code", name)), json.dumps(refusal.get("Message"))
    elif platform == "Google" and len(error.args) > 1:  # the response
        said = error.args[1] if isinstance(error.args[1], str) else json.dumps(error.args[1])
    elif match := _ENTRA_MESSAGE.search(str(error)):
        said = json.dumps(match[0])
    message = _TOKEN.sub("…", server_message({}, said.encode()))
    said = f": {message}" if message else ""
    if name in _NO_CREDENTIAL_ERRORS:
        return no_credential_error(platform, origin)
    return SourceDenied(f"{platform} returned no credential for {origin} ({name}){said}", advice)


def no_credential_error(platform: str, origin: str) -> SourceDenied:
    """Return the error for a missing credential."""
    advice = f"Log in or set the environment variables. {_PACKAGES[platform][2]}"
    return SourceDenied(
        f"no {platform} credential found for {origin}", advice, code="missing-secret"
    )


def token_session(*, proxies: bool = True) -> Any:
    """Return a ``requests.Session`` that follows no redirects.

    Redirects would leak tokens. A busy server raises SourceUnavailable, which callers retry.
    """
    import requests
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, ssl_context=client_context(), **options)

        def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
            return super().proxy_manager_for(proxy, ssl_context=client_context(), **options)

        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            response = super().send(request, *args, **options)
            if response.status_code == 429 or response.status_code >= 500:
                host = urlsplit(request.url).hostname
                raise SourceUnavailable(f"{host} returned no token (status {response.status_code})")
            return response

    session = requests.Session()
    session.max_redirects = 0
    session.trust_env = proxies
    session.mount("https://", Adapter())
    session.mount("http://", Adapter())
    return session


def identity_token(audience: str, variable: str, environ: Mapping[str, str]) -> str:
    """Return the token in the file of ``variable``, or that of GitHub Actions."""
    if path := environ.get(variable):
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise SourceDenied(
                f"cannot read an identity token from {path}, named by {variable}",
                "Set it to the file that contains the identity token.",
                code="missing-secret",
            ) from None
    url, token = (environ.get(f"ACTIONS_ID_TOKEN_REQUEST_{part}") for part in ("URL", "TOKEN"))
    if not (url and token):
        raise SourceDenied(
            "no identity token found",
            f"Set {variable} to the file that contains the token, or in GitHub Actions give the job `permissions: {{id-token: write}}`.",
            code="missing-secret",
        )
    url = f"{url}&audience={quote(audience, safe='')}"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        client = HttpClient(read_timeout=SILENCE_SECONDS)
        with client.request("GET", url, headers, follow=False) as response:
            body = response.read_all(_MAX_BYTES)
    except HttpError as error:
        raise SourceUnreachable(
            f"GitHub Actions is unreachable for an identity token: {error.reason}", error.advice
        ) from None
    if response.status != 200:
        raise SourceDenied(
            f"GitHub Actions refused an identity token (status {response.status})",
            "Give the job `permissions: {id-token: write}`.",
        )
    try:
        return str(json.loads(body)["value"])
    except (ValueError, LookupError, TypeError):
        raise SourceDenied("GitHub Actions returned no identity token") from None


_STS_AUDIENCE = "sts.amazonaws.com"
_STS_ATTEMPTS = 3  # a plan waits for logins, so it fails soon


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
    return _aws_credential(
        keys, session.region_name, origin, partial(default_aws_credential, origin)
    )


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
        token = identity_token(_STS_AUDIENCE, "AWS_WEB_IDENTITY_TOKEN_FILE", environ)
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
    return _aws_credential((*keys, response.get("Expiration")), region, origin, renew)


def _aws_credential(
    keys: tuple[Any, ...], region: str | None, origin: str, renew: Callable[[], SourceCredential]
) -> SourceCredential:
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "expires_at")
    document = dict(zip(names, keys, strict=True), aws_region=region)
    # a credential that doesn't expire has no such time
    text = json.dumps({name: value for name, value in document.items() if value}, default=str)
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
        retries={"total_max_attempts": _STS_ATTEMPTS},
        **unsigned,
    )
    core.set_default_client_config(config)
    return boto3.Session(botocore_session=core)


_STORAGE = "https://www.googleapis.com/auth/devstorage.read_write"
_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
_JWT = "urn:ietf:params:oauth:token-type:jwt"


def federated_token(
    provider: str, service_account: str, environ: Mapping[str, str] = os.environ
) -> SourceCredential:
    """Return a service account's token by workload identity federation.

    ``provider``: ``projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/NAME``.
    ``GOOGLE_STS_URL`` and ``GOOGLE_IAM_CREDENTIALS_URL`` override Google's servers.
    """
    audience = f"//iam.googleapis.com/{provider.removeprefix('//iam.googleapis.com/')}"
    sts = environ.get("GOOGLE_STS_URL") or "https://sts.googleapis.com"
    iam = environ.get("GOOGLE_IAM_CREDENTIALS_URL") or "https://iamcredentials.googleapis.com"
    account = quote(service_account, safe="@")

    def subject_token(context: object, request: object) -> str:
        return identity_token(f"https:{audience}", "GOOGLE_OIDC_TOKEN_FILE", environ)

    supplier = SimpleNamespace(get_subject_token=subject_token)

    def make() -> Any:
        from google.auth import identity_pool

        credentials: Any = identity_pool.Credentials
        return credentials(
            audience,
            _JWT,
            token_url=f"{sts}/v1/token",
            subject_token_supplier=supplier,
            service_account_impersonation_url=f"{iam}/v1/projects/-/serviceAccounts/{account}:generateAccessToken",
            scopes=[_PLATFORM],
        )

    return _google_token(make, f"service account {service_account}")


def google_token(origin: str, *, of_machine: bool = False) -> SourceCredential:
    """Return a token of the application default credentials, or of this machine's account by the metadata server."""

    def make() -> Any:
        if not of_machine:
            import google.auth

            return google.auth.default(scopes=[_STORAGE])[0]
        from google.auth.compute_engine import Credentials

        credentials: Any = Credentials
        return credentials(scopes=[_STORAGE])

    return _google_token(make, origin, proxies=not of_machine)


def _google_token(
    make: Callable[[], Any], origin: str, *, proxies: bool = True
) -> SourceCredential:
    with token_errors("Google", origin):
        from google.auth.transport.requests import Request

        credentials = make()
        request = Request(token_session(proxies=proxies))
        credentials.refresh(partial(request, timeout=SILENCE_SECONDS))
    expires_at = credentials.expiry.replace(tzinfo=UTC) if credentials.expiry else None
    renew = partial(_google_token, make, origin, proxies=proxies)
    text = encode_token(credentials.token, expires_at, credentials.quota_project_id)
    return SourceCredential(text, origin, renew=renew)


_AZURE_STORAGE = "https://storage.azure.com/.default"
_EXCLUDED_TOOLS = (
    "powershell",
    "developer_cli",
    "visual_studio_code",
    "shared_token_cache",
    "broker",
)
"""Developer tools that are skipped: each starts a program or loads a library."""


def azure_token(origin: str) -> SourceCredential:
    """Return a token of Azure's default chain."""
    with token_errors("Azure", origin):
        from azure.core.pipeline.transport import RequestsTransport
        from azure.identity import DefaultAzureCredential

        transport = RequestsTransport(
            session=token_session(),
            session_owner=False,
            connection_timeout=CONNECT_SECONDS,
            read_timeout=SILENCE_SECONDS,
        )
        excluded = {f"exclude_{tool}_credential": True for tool in _EXCLUDED_TOOLS}
        chain = DefaultAzureCredential(**excluded, transport=transport, retry_total=1)
        token = chain.get_token(_AZURE_STORAGE)
    expires_at = datetime.fromtimestamp(token.expires_on, UTC)
    return SourceCredential(
        encode_token(token.token, expires_at), origin, renew=partial(azure_token, origin)
    )
