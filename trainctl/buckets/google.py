"""Access tokens of Google Cloud from google-auth."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import partial
from typing import Any
from urllib.parse import quote

from trainctl.buckets.credentials import encode_token
from trainctl.buckets.token_requests import (
    SILENCE_SECONDS,
    identity_token,
    token_errors,
    token_session,
)
from trainctl.plugin_api.sources import SourceCredential

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

    def make() -> Any:
        from google.auth import identity_pool

        credentials: Any = identity_pool.Credentials
        return credentials(
            audience,
            _JWT,
            token_url=f"{sts}/v1/token",
            subject_token_supplier=_IdentityTokenSupplier(f"https:{audience}", environ),
            service_account_impersonation_url=f"{iam}/v1/projects/-/serviceAccounts/{account}:generateAccessToken",
            scopes=[_PLATFORM],
        )

    return _token(make, f"service account {service_account}")


def default_token(origin: str) -> SourceCredential:
    """Return a token of the application default credentials."""

    def make() -> Any:
        import google.auth

        return google.auth.default(scopes=[_STORAGE])[0]

    return _token(make, origin)


def instance_token(origin: str) -> SourceCredential:
    """Return a token of this machine's service account from the metadata server."""

    def make() -> Any:
        from google.auth.compute_engine import Credentials

        credentials: Any = Credentials
        return credentials(scopes=[_STORAGE])

    return _token(make, origin, proxies=False)


class _IdentityTokenSupplier:
    """A ``SubjectTokenSupplier`` of google-auth."""

    def __init__(self, audience: str, environ: Mapping[str, str]) -> None:
        self._audience = audience
        self._environ = environ

    def get_subject_token(self, context: object, request: object) -> str:
        return identity_token(self._audience, "GOOGLE_OIDC_TOKEN_FILE", self._environ)


def _token(make: Callable[[], Any], origin: str, *, proxies: bool = True) -> SourceCredential:
    with token_errors("Google", origin):
        from google.auth.transport.requests import Request

        credentials = make()
        request = Request(token_session(proxies=proxies))
        credentials.refresh(partial(request, timeout=SILENCE_SECONDS))
    expires_at = credentials.expiry.replace(tzinfo=UTC) if credentials.expiry else None
    renew = partial(_token, make, origin, proxies=proxies)
    return SourceCredential(encode_token(credentials.token, expires_at), origin, renew=renew)
