"""Common to the platforms' libraries: their HTTP sessions, and their errors as ours."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from trainctl.base.certificates import trusting
from trainctl.errors import (
    SourceBusy,
    SourceDenied,
    SourceError,
    SourceUnreachable,
    TrainctlError,
    missing_extra,
)

SILENCE_SECONDS = 30.0
CONNECT_SECONDS = 5.0
_PACKAGES = {
    "AWS": ("boto3", "aws", "Check the role's trust policy, or log in: aws sso login."),
    "Google": ("google-auth", "gcp", "Check the account and who may use it, or log in again."),
    "Azure": ("azure-identity", "azure", "Check the principal or identity, or log in: az login."),
}
_NONE_FOUND = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "DefaultCredentialsError",
)
"""Exceptions of the libraries that say that there is no credential, and nothing was refused."""

for _name in ("azure", "google", "msal"):  # else their warnings reach stderr unredacted
    logging.getLogger(_name).addHandler(logging.NullHandler())


@contextmanager
def token_errors(platform: str, origin: str) -> Iterator[None]:
    """Raise a library's exceptions, a failed import included, as ours: without its text, which may repeat what was sent."""
    package, extra, advice = _PACKAGES[platform]
    try:
        yield
    except TrainctlError:
        raise
    except ImportError:
        raise missing_extra(origin, package, extra) from None
    except Exception as error:  # noqa: BLE001 - each library has an exception tree of its own
        raise _explained(error, platform, origin, advice) from None


def _explained(error: Exception, platform: str, origin: str, advice: str) -> SourceError:
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return SourceError(
                f"{platform}'s certificate is not trusted ({cause.verify_message}), for {origin}",
                "Name the certificates to trust in SSL_CERT_FILE.",
                code="untrusted-certificate",
            )
        if isinstance(cause, (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError)):
            return SourceUnreachable(
                f"{platform} is unreachable for {origin}",
                "Check the network and, behind a proxy, HTTPS_PROXY.",
            )
    name = type(error).__name__
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        name = str(answer.get("Error", {}).get("Code", name))
    if name in _NONE_FOUND:
        return none_found(platform, origin)
    return SourceDenied(f"{platform} gave no credential for {origin} ({name})", advice)


def none_found(platform: str, origin: str) -> SourceDenied:
    """There is no credential to begin with."""
    advice = f"Log in or set its variables. {_PACKAGES[platform][2]}"
    return SourceDenied(
        f"no credential of {platform} found for {origin}", advice, code="missing-secret"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        inner = getattr(error, "inner_exception", None)  # azure-core's
        error = inner or error.__cause__ or error.__context__


def session(*, proxies: bool = True) -> Any:
    """A ``requests.Session`` that trusts what ``base.certificates`` trusts and follows no redirect.

    A redirect would take along the token that the request carries. A busy server is SourceBusy, which callers retry.
    """
    import requests
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, ssl_context=trusting(), **options)

        def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
            return super().proxy_manager_for(proxy, ssl_context=trusting(), **options)

        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            answer = super().send(request, *args, **options)
            if answer.status_code == 429 or answer.status_code >= 500:
                host = urlsplit(request.url).hostname
                raise SourceBusy(f"{host} gave no token (status {answer.status_code})")
            return answer

    made = requests.Session()
    made.max_redirects = 0
    made.trust_env = proxies
    made.mount("https://", Adapter())
    made.mount("http://", Adapter())
    return made
