"""The server of a bucket."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from trainctl.manifest.tokens import url_holds_secret
from trainctl.manifest.types.base import wrong


def _endpoint(text: str) -> str:
    if url_holds_secret(text) or "@" in text:
        raise wrong(
            "the URL holds a credential",
            "Declare it under 'secrets' and name it in 'auth'.",
            code="credential",
        )
    if not text.startswith(("https://", "http://")):
        raise wrong(
            "this is not an endpoint",
            "Write https://HOST or http://HOST:PORT.",
            code="invalid-endpoint",
        )
    return text


EndpointUrl = Annotated[
    str, AfterValidator(_endpoint), Field(json_schema_extra={"pattern": "^https?://"})
]
