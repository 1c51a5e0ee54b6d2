"""Access tokens of Azure, by azure-identity."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from trainctl.objects.access import token_text
from trainctl.objects.tokens import (
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
    with token_errors("Azure", origin):
        from azure.core.pipeline.transport import RequestsTransport
        from azure.identity import DefaultAzureCredential

        transport = RequestsTransport(
            session=session(),
            session_owner=False,
            connection_timeout=CONNECT_SECONDS,
            read_timeout=SILENCE_SECONDS,
        )
        left_out = {f"exclude_{each}_credential": True for each in _LEFT_OUT}
        chain = DefaultAzureCredential(**left_out, transport=transport, retry_total=1)
        token = chain.get_token(_SCOPE)
    ends = datetime.fromtimestamp(token.expires_on, UTC)
    return Credential(token_text(token.token, ends), origin, renew=partial(default_token, origin))
