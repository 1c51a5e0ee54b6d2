"""What a source of weights, or a bucket to keep things in, may be called."""

from __future__ import annotations

from trainctl.manifest.types.base import wrong
from trainctl.model.source_uri import parse_source


def checked_source(text: str, code: str) -> str:
    """The text; the manifest's error, with that code, where it is no source."""
    try:
        parse_source(text)
    except ValueError as why:
        summary, _, advice = str(why).partition("; ")
        raise wrong(summary, f"{advice[:1].upper()}{advice[1:]}.", code=code) from None
    return text
