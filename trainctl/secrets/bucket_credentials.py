"""Credentials of buckets, declared or from the default credential chain."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import replace
from trainctl.errors import PermissionDenied, SourceDenied, TrainctlError
from trainctl.model.single_flight import SingleFlight
from trainctl.model.specs.auth import SourceAuthSpec
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.trust import SecretDestination

if TYPE_CHECKING:
    from trainctl.plugin_api.sources import SourceCredential

_ANONYMOUS = "nobody"
"""Origin of an empty credential."""


def bucket_credential(
    weights: WeightsSpec,
    value: Callable[[str, SecretDestination], str],
    environ: Mapping[str, str],
    cache: CredentialCache,
    *,
    default: bool,
) -> SourceCredential | None:
    """Return the credential declared in ``auth``, else (``default``) that of the default credential chain, or None.

    ``value`` reads a secret for a host, and checks trust. Credentials of roles and of the chain are not sent to hosts
    that only the manifest names: PermissionDenied, or an empty credential with ``withheld_reason``.
    """
    from trainctl.buckets.location import parse_bucket_location
    from trainctl.plugin_api.sources import SourceCredential

    method = weights.auth.auth_method if weights.auth else None
    if method is None and not default:
        return None
    location = parse_bucket_location(weights.source, weights.endpoint_url, environ)
    if weights.auth is not None and method == "CUSTOM_SECRET":
        name = weights.auth.auth_secret_name or ""
        return SourceCredential(value(name, location.destination).strip(), f"secret {name}")
    if weights.auth is not None and method is not None:
        if not location.trusted:
            raise _untrusted(method, location.host)
        identity = replace(weights.auth, endpoint_url=None, requester_pays=False)
        return cache.get(identity, partial(_exchange_token, identity, environ))
    from trainctl.buckets import default_chain  # only for buckets

    scheme, account = location.scheme, location.account
    if not location.trusted:
        reason = default_chain.default_credential_origin(scheme, account, environ)
        return SourceCredential("", _ANONYMOUS, weights.endpoint_url, withheld_reason=reason)
    find = partial(default_chain.default_credential, scheme, account, environ)
    return cache.get((scheme, account), find)


def bind_and_mask(
    credential: SourceCredential | None, weights: WeightsSpec, mask: Callable[[str], object]
) -> SourceCredential | None:
    """Validate and mask a credential, and bind it to the endpoint."""
    from trainctl.plugin_api.sources import SourceCredential

    endpoint = weights.endpoint_url
    if credential is None:
        return SourceCredential("", _ANONYMOUS, endpoint) if endpoint else None
    if not credential.value:
        return credential
    from trainctl.buckets.credentials import parse_credential, secret_values

    access = parse_credential(weights.uri.scheme, credential.value, credential.origin)
    mask(credential.value)
    for part in secret_values(access):
        mask(part)
    renew = credential.renew

    def renewed() -> SourceCredential:
        return bind_and_mask(renew() if renew else None, weights, mask) or credential

    return SourceCredential(
        credential.value,
        credential.origin,
        endpoint,
        None if renew is None else renewed,
        requester_pays=weights.auth is not None and weights.auth.requester_pays,
    )


def explain_denial(error: TrainctlError, credential: SourceCredential | None) -> TrainctlError:
    """Return PermissionDenied if a credential was withheld, else the error."""
    if not isinstance(error, SourceDenied) or credential is None or not credential.withheld_reason:
        return error
    return _untrusted(credential.withheld_reason, str(credential.endpoint))


@contextmanager
def explaining_denials(credential: SourceCredential | None) -> Iterator[None]:
    """Replace SourceDenied by ``explain_denial`` in a block."""
    try:
        yield
    except SourceDenied as error:
        explained = explain_denial(error, credential)
        if explained is error:
            raise
        raise explained from error


def _untrusted(origin: str, host: str) -> PermissionDenied:
    return PermissionDenied(
        f"the credential of {origin} is not sent to {host}: only the manifest names this host",
        "Set the server in the environment (AWS_ENDPOINT_URL_S3, STORAGE_EMULATOR_HOST, AZURE_STORAGE_ENDPOINT), or use a secret that your trust file allows for this host.",
        code="untrusted-host",
    )


def _exchange_token(auth: SourceAuthSpec, environ: Mapping[str, str]) -> SourceCredential:
    from trainctl.buckets import logins  # slow to load

    if auth.auth_method == "GCP_OIDC":
        provider, account = auth.gcp_oidc_workload_id_provider, auth.gcp_oidc_service_account
        return logins.federated_token(provider or "", account or "", environ)
    if auth.auth_method == "AWS_OIDC":
        role, region = auth.aws_oidc_role_arn, auth.aws_oidc_region
        return logins.assume_role_by_identity(role or "", region or "", environ)
    role, region = auth.aws_assume_role_arn, auth.aws_assume_role_region
    return logins.assume_role(role or "", region or "", environ)


class CredentialCache:
    """Thread-safe cache of credentials, which renews each once for all users."""

    def __init__(self) -> None:
        from trainctl.plugin_api.sources import SourceCredential

        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._credentials = SingleFlight[SourceCredential | None](forget_errors=True)

    def get(
        self, key: Hashable, fetch: Callable[[], SourceCredential | None]
    ) -> SourceCredential | None:
        """Return the cached credential, fetching it once; errors are not cached."""
        credential = self._credentials.get(key, fetch)
        if credential is None or credential.renew is None:
            return credential
        renew = credential.renew

        def renewed() -> SourceCredential:
            with self._lock:
                lock = self._locks[key]
            with lock:
                if self._credentials.get(key, fetch) is credential:  # not renewed by others
                    self._credentials.put(key, renew())
            return self.get(key, fetch) or credential

        return replace(credential, renew=renewed)
