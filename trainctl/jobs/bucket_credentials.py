"""What opens a bucket: by the ``auth`` of its source, or from its platform's usual places."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from trainctl.errors import PermissionDenied, SourceDenied, TrainctlError
from trainctl.model.single_flight import SingleFlight
from trainctl.model.source_uri import parse_source
from trainctl.model.specs.resource import SourceAuthSpec, WeightsSpec
from trainctl.objects.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential

Value = Callable[[str], str]
"""The value of a secret by its name."""

_ANONYMOUS = "nobody"
"""The origin of an empty credential."""


def declared_bucket_credential(
    weights: WeightsSpec, value: Value, environ: Mapping[str, str], asked: CredentialCache
) -> SourceCredential | None:
    """By a source's own ``auth``; None where it names no method.

    ``value`` judges whether a secret may go there. What a role or an identity gives goes to no endpoint that only the manifest names.
    """
    auth = weights.auth
    if auth is None or auth.auth_method is None:
        return None
    place = parse_bucket_location(weights.source, auth.endpoint_url, environ)
    if auth.auth_method != "CUSTOM_SECRET" and not place.trusted:
        raise _untrusted(auth.auth_method, place.host)
    if auth.auth_method == "CUSTOM_SECRET":
        name = auth.auth_secret_name or ""
        return SourceCredential(value(name).strip(), f"secret {name}")
    identity = replace(auth, endpoint_url=None)
    return asked.get(identity, lambda: _exchange_token(identity, environ))


def default_bucket_credential(
    weights: WeightsSpec, environ: Mapping[str, str], asked: CredentialCache
) -> SourceCredential | None:
    """From the platform's usual places, for its own servers and those that the environment names; None where there is nothing.

    For any other it is empty, and says what isn't sent there.
    """
    from trainctl.objects.default_chain import (  # buckets only
        default_credential,
        default_credential_origin,
    )

    place = parse_bucket_location(weights.source, weights.endpoint_url, environ)
    if not place.trusted:
        withheld_reason = default_credential_origin(place.scheme, place.account, environ)
        return SourceCredential(
            "", _ANONYMOUS, weights.endpoint_url, withheld_reason=withheld_reason
        )
    return asked.get(
        (place.scheme, place.account),
        lambda: default_credential(place.scheme, place.account, environ),
    )


def bind_and_mask(
    credential: SourceCredential | None, weights: WeightsSpec, mask: Callable[[str], object]
) -> SourceCredential | None:
    """The credential, bound to the endpoint, its form checked, and what is secret of it masked; so will be all that follow it."""
    endpoint = weights.endpoint_url
    if credential is None:
        return SourceCredential("", _ANONYMOUS, endpoint) if endpoint else None
    if not credential.value:
        return credential
    from trainctl.objects.credentials import parse_credential, secret_values

    scheme = parse_source(weights.source).scheme
    access = parse_credential(scheme, credential.value, credential.origin)
    mask(credential.value)
    for part in secret_values(access):
        mask(part)
    renew = credential.renew

    def renewed() -> SourceCredential:
        found = bind_and_mask(renew() if renew else None, weights, mask)
        return found or credential

    return SourceCredential(
        credential.value, credential.origin, endpoint, None if renew is None else renewed
    )


def explain_denial(error: TrainctlError, credential: SourceCredential | None) -> TrainctlError:
    """The error itself; Forbidden for one who refuses where a credential is at hand that isn't sent there."""
    if not isinstance(error, SourceDenied) or credential is None or not credential.withheld_reason:
        return error
    return _untrusted(credential.withheld_reason, str(credential.endpoint))


@contextmanager
def explaining_denials(credential: SourceCredential | None) -> Iterator[None]:
    """Raise ``explain_denial`` for what is raised within."""
    try:
        yield
    except SourceDenied as error:
        told = explain_denial(error, credential)
        if told is error:
            raise
        raise told from error


def _untrusted(what: str, host: str) -> PermissionDenied:
    return PermissionDenied(
        f"the credential of {what} is not sent to {host}: only the manifest names this host",
        "Set the server in the environment (AWS_ENDPOINT_URL_S3, STORAGE_EMULATOR_HOST, AZURE_STORAGE_ENDPOINT), or use a secret that your trust file allows for this host.",
        code="untrusted-host",
    )


def _exchange_token(auth: SourceAuthSpec, environ: Mapping[str, str]) -> SourceCredential:
    from trainctl.objects import aws, google  # only if a credential is exchanged

    if auth.auth_method == "GCP_OIDC":
        provider, account = auth.gcp_oidc_workload_id_provider, auth.gcp_oidc_service_account
        return google.federated_token(provider or "", account or "", environ)
    if auth.auth_method == "AWS_OIDC":
        role, region = auth.aws_oidc_role_arn, auth.aws_oidc_region
        return aws.assume_role_by_identity(role or "", region or "", environ)
    role, region = auth.aws_assume_role_arn, auth.aws_assume_role_region
    return aws.assume_role(role or "", region or "", environ)


class CredentialCache:
    """What was asked for, by what it is of; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._known = SingleFlight[SourceCredential | None](forget_errors=True)

    def get(
        self, key: Hashable, ask: Callable[[], SourceCredential | None]
    ) -> SourceCredential | None:
        """What ``ask`` gave the first who wanted it; None where there was nothing. What it raises is not kept."""
        known = self._known.get(key, ask)
        if known is None or known.renew is None:
            return known
        renew = known.renew

        def renewed() -> SourceCredential:
            with self._of(key):
                if self._known.get(key, ask) is known:  # nobody was quicker
                    self._known.put(key, renew())
            return self.get(key, ask) or known

        return replace(known, renew=renewed)

    def _of(self, key: Hashable) -> threading.Lock:
        with self._lock:
            return self._locks[key]
