"""What opens a bucket: by the ``auth`` of its source, or from its platform's usual places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainctl.errors import Forbidden
from trainctl.jobs.asked_once import AskedOnce
from trainctl.model.source_uri import parse_source
from trainctl.objects.place import Place, place_of
from trainctl.spi.sources import Credential

Value = Callable[[str], str]
"""The value of a secret by its name."""


def declared(
    attributes: Mapping[str, Any], value: Value, environ: Mapping[str, str], asked: AskedOnce
) -> Credential | None:
    """By a source's own ``auth``; None where it names no method.

    ``value`` judges whether a secret may go there. What a role or an identity gives goes to no endpoint that only the manifest names.
    """
    auth = attributes.get("auth") or {}
    if "auth_method" not in auth:
        return None
    place = _place(attributes, environ)
    if auth["auth_method"] != "CUSTOM_SECRET" and not place.trusted:
        raise _untrusted(auth, place.host)
    if auth["auth_method"] == "CUSTOM_SECRET":
        name = auth["auth_secret_name"]
        return Credential(value(name).strip(), f"secret {name}")
    who = tuple(sorted((name, one) for name, one in auth.items() if name != "endpoint_url"))
    return asked.get(who, lambda: _exchanged(auth, environ))


def usual(
    attributes: Mapping[str, Any], environ: Mapping[str, str], asked: AskedOnce
) -> Credential | None:
    """From the platform's usual places, for its own servers and those that the environment names; None where there is nothing."""
    from trainctl.objects.usual import usual_credential  # loaded for buckets only

    place = _place(attributes, environ)
    if not place.trusted:
        return None
    return asked.get(
        (place.scheme, place.account),
        lambda: usual_credential(place.scheme, place.account, environ),
    )


def masked(
    credential: Credential | None, attributes: Mapping[str, Any], mask: Callable[[str], object]
) -> Credential | None:
    """The credential, bound to the endpoint, its form checked, and what is secret of it masked; so will be all that follow it."""
    endpoint = (attributes.get("auth") or {}).get("endpoint_url")
    if credential is None:
        return Credential("", "nobody", endpoint) if endpoint else None
    from trainctl.objects.access import access_of, secret_parts

    scheme = parse_source(str(attributes["source"])).scheme
    access = access_of(scheme, credential.value, credential.origin)
    mask(credential.value)
    for part in secret_parts(access):
        mask(part)
    renew = credential.renew

    def renewed() -> Credential:
        found = masked(renew() if renew else None, attributes, mask)
        return found or credential

    return Credential(
        credential.value, credential.origin, endpoint, None if renew is None else renewed
    )


def _untrusted(auth: Mapping[str, Any], host: str) -> Forbidden:
    return Forbidden(
        f"the credential of {auth['auth_method']} is not sent to {host}, which only the manifest names",
        "A manifest may come from anybody. Name that server in the environment (AWS_ENDPOINT_URL_S3, "
        "STORAGE_EMULATOR_HOST), or use a secret that your trust file allows to go there.",
        code="untrusted-host",
    )


def _place(attributes: Mapping[str, Any], environ: Mapping[str, str]) -> Place:
    endpoint = (attributes.get("auth") or {}).get("endpoint_url")
    return place_of(str(attributes["source"]), endpoint, environ)


def _exchanged(auth: Mapping[str, Any], environ: Mapping[str, str]) -> Credential:
    method = auth["auth_method"]
    from trainctl.objects import exchange  # loaded by who exchanges something

    if method == "GCP_OIDC":
        return exchange.exchange_for_google(
            auth["gcp_oidc_workload_id_provider"], auth["gcp_oidc_service_account"], environ
        )
    if method == "AWS_OIDC":
        return exchange.assume_role_by_identity(
            auth["aws_oidc_role_arn"], auth["aws_oidc_region"], environ
        )
    return exchange.assume_role(
        auth["aws_assume_role_arn"], auth["aws_assume_role_region"], environ
    )
