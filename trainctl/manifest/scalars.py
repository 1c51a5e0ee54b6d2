"""Scalars of the YAML 1.2 core schema: what an unquoted word means."""

from __future__ import annotations

import math
import re

from trainctl.manifest.tree import Scalar, SourceFloat

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_UNENCODABLE = re.compile("[\x00\ud800-\udfff]")
_MAX_DIGITS = 400


def resolve(text: str) -> Scalar:
    """The value of an unquoted word; ValueError says why it has none."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return parse_finite(text)
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("infinity and NaN are not allowed in a manifest")
    return require_encodable(text)


def parse_finite(text: str) -> SourceFloat:
    """A float with its spelling; ValueError where it is infinite, not a number, or too large."""
    number = SourceFloat(text)
    if not math.isfinite(number):
        raise ValueError(
            "infinity, NaN and numbers that are too large are not allowed in a manifest"
        )
    return number


def require_encodable(text: str) -> str:
    """The text, if programs can be told it; ValueError if it holds NUL or half a surrogate pair."""
    if _UNENCODABLE.search(text):
        raise ValueError("text can't contain NUL or lone surrogates")
    return text


def scalar_text(value: Scalar) -> str:
    """A scalar as text: floats as they were written, the rest as YAML and TOML both write it."""
    if isinstance(value, SourceFloat):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer can have at most {_MAX_DIGITS} digits")
    if text.startswith(("0o", "0x")):
        return int(text, 0)
    return int(text)
