"""Credentials of sources and buckets, and names of cloud regions, roles and accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Annotated, Literal

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.json_codec import OMIT_EMPTY
from trainctl.model.specs.checks import (
    CheckedSection,
    Name,
    check,
    prepared,
    require,
    validation_error,
)


def _matching(pattern: str, noun: str, example: str) -> object:
    return require(
        lambda text: re.fullmatch(pattern, text),
        f"not {noun}",
        f"Use {example}.",
        "invalid-value",
        pattern=f"^{pattern}$",
    )


Region = Annotated[
    str,
    _matching(r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}", "an AWS region", "for example us-west-2"),
]

RoleArn = Annotated[
    str,
    _matching(
        r"arn:aws(-[a-z]+)*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+",
        "an ARN of an AWS role",
        "arn:aws:iam::ACCOUNT:role/NAME, with an account ID of 12 digits",
    ),
]

ServiceAccount = Annotated[
    str,
    _matching(
        r"[a-z0-9][a-z0-9.-]*@([a-z0-9-]+\.)+gserviceaccount\.com",
        "an address of a service account",
        "NAME@PROJECT.iam.gserviceaccount.com",
    ),
]

WorkloadProvider = Annotated[
    str,
    _matching(
        r"(//iam\.googleapis\.com/)?projects/[0-9]+/locations/global/workloadIdentityPools/[a-z0-9-]+/providers/[a-z0-9-]+",
        "a full name of a workload identity provider",
        "projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/NAME",
    ),
]


def _endpoint(text: str) -> str:
    from trainctl.model.credentials import url_has_credential  # only for manifests

    if url_has_credential(text) or "@" in text:
        raise validation_error(
            "the URL contains a credential",
            "Declare the credential under 'secrets' and name the secret in 'auth'.",
            code="credential",
        )
    if not text.startswith(("https://", "http://")):
        raise validation_error(
            "not an endpoint URL",
            "Use https://HOST or http://HOST:PORT.",
            code="invalid-endpoint",
        )
    return text


EndpointUrl = Annotated[str, check(_endpoint, pattern="^https?://")]


def validate_source(text: str, code: str) -> str:
    """Return the text; raise a validation error with this code unless it is a source."""
    from trainctl.model.source_uri import parse_source  # only for manifests

    try:
        parse_source(text)
    except ValueError as why:
        summary, _, advice = str(why).partition("; ")
        raise validation_error(summary, f"{advice[:1].upper()}{advice[1:]}.", code=code) from None
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth(CheckedSection):
    """Credential of a bucket."""

    auth_method: Literal["CUSTOM_SECRET"] = "CUSTOM_SECRET"
    """Method: a secret declared in this manifest."""
    auth_secret_name: Name
    """Name of a secret declared in ``secrets``."""


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "CUSTOM_SECRET": ("auth_secret_name",),
    "AWS_OIDC": ("aws_oidc_role_arn", "aws_oidc_region"),
    "AWS_ASSUME_ROLE": ("aws_assume_role_arn", "aws_assume_role_region"),
    "GCP_OIDC": ("gcp_oidc_service_account", "gcp_oidc_workload_id_provider"),
}
_OF_ANY = ("auth_method", "endpoint_url")


@dataclass(frozen=True, slots=True)
class SourceAuth(CheckedSection):
    """Credential of a source, used to resolve and mirror it; it never reaches a job."""

    auth_method: Annotated[
        Literal["CUSTOM_SECRET", "AWS_OIDC", "AWS_ASSUME_ROLE", "GCP_OIDC"],
        prepared(lambda value: value.upper() if isinstance(value, str) else value),
    ] = "CUSTOM_SECRET"
    """Method: a secret declared in this manifest, or an assumed role or account."""
    auth_secret_name: Name | None = field(default=None, metadata=OMIT_EMPTY)
    """With ``CUSTOM_SECRET``: name of a secret declared in ``secrets``."""
    aws_oidc_role_arn: RoleArn | None = field(default=None, metadata=OMIT_EMPTY)
    """With ``AWS_OIDC``: role to assume with an identity token."""
    aws_oidc_region: Region | None = field(default=None, metadata=OMIT_EMPTY)
    """With ``AWS_OIDC``: region of the token service and the bucket."""
    aws_assume_role_arn: RoleArn | None = field(default=None, metadata=OMIT_EMPTY)
    """With ``AWS_ASSUME_ROLE``: role to assume with the client's credential."""
    aws_assume_role_region: Region | None = field(default=None, metadata=OMIT_EMPTY)
    """With ``AWS_ASSUME_ROLE``: region of the token service and the bucket."""
    gcp_oidc_service_account: ServiceAccount | None = field(default=None, metadata=OMIT_EMPTY)
    """With ``GCP_OIDC``: service account to impersonate, as an e-mail address."""
    gcp_oidc_workload_id_provider: WorkloadProvider | None = field(
        default=None, metadata=OMIT_EMPTY
    )
    """With ``GCP_OIDC``: ``projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/NAME``."""
    endpoint_url: EndpointUrl | None = field(default=None, metadata=OMIT_EMPTY)
    """Custom endpoint URL, for example of an S3-compatible server."""

    def check_keys(self, written: Set[str]) -> None:
        """Require the keys of the method, or an endpoint alone, and no others."""
        required = _FIELDS[self.auth_method]
        endpoint_only = self.endpoint_url is not None and written <= {"endpoint_url"}
        missing = [name for name in required if getattr(self, name) is None]
        if missing and not endpoint_only:
            raise validation_error(
                f"{self.auth_method} needs {missing[0]!r}",
                f"Add {missing[0]}: … next to it.",
                code="missing-key",
            )
        for name in sorted(written - {*required, *_OF_ANY}):
            if getattr(self, name) is not None:
                raise validation_error(
                    f"{name!r} can't be used with {self.auth_method}",
                    f"Remove {name!r}, or change auth_method.",
                    code="redundant-key",
                )


@dataclass(frozen=True, slots=True)
class SourceAuthSpec(SourceAuth):
    """Credential and endpoint of a source. ``requester_pays``: it is billed."""

    auth_method: str | None = field(default=None, metadata=OMIT_EMPTY)  # type: ignore[assignment]  # only an endpoint
    requester_pays: bool = field(default=False, metadata=OMIT_EMPTY)
