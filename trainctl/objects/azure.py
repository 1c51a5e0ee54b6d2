"""Access tokens of Azure, by azure-identity."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from trainctl.objects.access import AzurePrincipal, token_text
from trainctl.objects.place import authority_of
from trainctl.objects.token_requests import (
    CONNECT_SECONDS,
    SILENCE_SECONDS,
    session,
    token_errors,
)
from trainctl.spi.sources import Credential

_SCOPE = "https://storage.azure.com/.default"
_LEFT_OUT = ("powershell", "developer_cli", "visual_studio_code", "shared_token_cache", "broker")
"""Developers' tools that trainctl doesn't use, each a program to start or a library to load."""


def default_token(origin: str) -> Credential:
    """A token of Azure's default chain: workload identity, managed identity, certificate, ``az login``."""

    def make(**options: Any) -> Any:
        from azure.identity import DefaultAzureCredential

        left_out = {f"exclude_{each}_credential": True for each in _LEFT_OUT}
        return DefaultAzureCredential(**left_out, **options)

    return _token(make, origin)


def principal_token(
    principal: AzurePrincipal, origin: str, environ: Mapping[str, str] = os.environ
) -> Credential:
    """A token of a service principal, by its secret."""

    def make(**options: Any) -> Any:
        from azure.identity import ClientSecretCredential

        return ClientSecretCredential(
            principal.tenant,
            principal.client,
            principal.secret,
            authority=authority_of(environ),
            disable_instance_discovery="AZURE_AUTHORITY_HOST"
            in environ,  # as Microsoft's servers don't know it
            **options,
        )

    return _token(make, origin)


def _token(make: Callable[..., Any], origin: str) -> Credential:
    with token_errors("Azure", origin):
        from azure.core.pipeline.transport import RequestsTransport

        transport = RequestsTransport(
            session=session(),
            session_owner=False,
            connection_timeout=CONNECT_SECONDS,
            read_timeout=SILENCE_SECONDS,
        )
        token = make(transport=transport, retry_total=1).get_token(_SCOPE)
    ends = datetime.fromtimestamp(token.expires_on, UTC)
    return Credential(token_text(token.token, ends), origin, renew=partial(_token, make, origin))
