"""HTTP sessions and error translation for the platforms' credential libraries."""

from __future__ import annotations

import json
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from trainctl.base.http import HttpClient, HttpError
from trainctl.base.http.refusals import server_message
from trainctl.base.network.tls import client_context
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceUnavailable,
    SourceUnreachable,
    TrainctlError,
    missing_extra,
)

SILENCE_SECONDS = 30.0
CONNECT_SECONDS = 5.0
_MAX_BYTES = 2**20
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

for _name in ("azure", "google", "msal"):  # keep unredacted warnings off stderr
    logging.getLogger(_name).addHandler(logging.NullHandler())


@contextmanager
def token_errors(platform: str, origin: str) -> Iterator[None]:
    """Translate a library's exceptions without their text, which may hold secrets; repeat the message of AWS."""
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
    causes = list(_causes(error))
    for cause in causes:
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
    name, said = type(error).__name__, ""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        refusal = response.get("Error", {})
        name = str(refusal.get("Code", name))
        message = server_message({}, json.dumps(refusal.get("Message")).encode())
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


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


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
    if url and token:
        return _github_token(f"{url}&audience={quote(audience, safe='')}", token)
    raise SourceDenied(
        "no identity token found",
        f"Set {variable} to the file that contains the token, or in GitHub Actions give the job `permissions: {{id-token: write}}`.",
        code="missing-secret",
    )


def _github_token(url: str, token: str) -> str:
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
