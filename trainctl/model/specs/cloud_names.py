"""Names of cloud regions, roles and accounts."""

from __future__ import annotations

import re
from typing import Annotated

from trainctl.model.specs.checks import check, validation_error


def _matching(pattern: str, noun: str, example: str) -> object:
    def checked(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise validation_error(f"not {noun}", f"Use {example}.", code="invalid-value")
        return text

    return check(checked, pattern=f"^{pattern}$")


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
