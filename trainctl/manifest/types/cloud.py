"""Names that clouds give to regions, roles and accounts, and URLs of buckets. They become parts of addresses and questions."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from trainctl.manifest.credentials import url_has_credential
from trainctl.manifest.types.base import validation_error
from trainctl.model.source_uri import parse_source

_REGION = r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}"
_ROLE = r"arn:aws(-[a-z]+)*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+"
_ACCOUNT = r"[a-z0-9][a-z0-9.-]*@([a-z0-9-]+\.)+gserviceaccount\.com"
_PROVIDER = r"(//iam\.googleapis\.com/)?projects/[0-9]+/locations/global/workloadIdentityPools/[a-z0-9-]+/providers/[a-z0-9-]+"


def _matching(pattern: str, what: str, example: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise validation_error(f"not {what}", f"Use {example}.", code="invalid-value")
        return text

    return AfterValidator(check)


def _schema_pattern(pattern: str) -> FieldInfo:
    found: FieldInfo = Field(json_schema_extra={"pattern": f"^{pattern}$"})
    return found


Region = Annotated[
    str, _matching(_REGION, "an AWS region", "for example us-west-2"), _schema_pattern(_REGION)
]

RoleArn = Annotated[
    str,
    _matching(
        _ROLE,
        "an ARN of an AWS role",
        "arn:aws:iam::ACCOUNT:role/NAME, with an account ID of 12 digits",
    ),
    _schema_pattern(_ROLE),
]

ServiceAccount = Annotated[
    str,
    _matching(
        _ACCOUNT,
        "an address of a service account",
        "NAME@PROJECT.iam.gserviceaccount.com",
    ),
    _schema_pattern(_ACCOUNT),
]

WorkloadProvider = Annotated[
    str,
    _matching(
        _PROVIDER,
        "a full name of a workload identity provider",
        "projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/NAME",
    ),
    _schema_pattern(_PROVIDER),
]


def _endpoint(text: str) -> str:
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


EndpointUrl = Annotated[
    str, AfterValidator(_endpoint), Field(json_schema_extra={"pattern": "^https?://"})
]


def validate_source(text: str, code: str) -> str:
    """The text; the manifest's error, with that code, where it is no source."""
    try:
        parse_source(text)
    except ValueError as why:
        summary, _, advice = str(why).partition("; ")
        raise validation_error(summary, f"{advice[:1].upper()}{advice[1:]}.", code=code) from None
    return text
