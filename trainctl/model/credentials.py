"""Detection and masking of literal credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlsplit

from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.model.diagnostics import Diagnostic

_TOKEN = compile_lazily(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?:[A-Za-z0-9]{20,}|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{12,})"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}"
    r"|sk-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|AIza[0-9A-Za-z_-]{35}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\."
    r")|-----BEGIN "
)
_STARTS = (
    *("hf_", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("sk-", "xox", "AIza", "eyJ", "-----BEGIN "),
)
"""Each token has one of these texts, which are found faster than the pattern."""
_WHOLE_TOKEN = compile_lazily(rf"(?s:-----BEGIN .*)|(?:{_TOKEN.pattern})[A-Za-z0-9_.-]*")
HIDDEN = "(not shown)"
"""Replacement of a credential."""
_ANY_URL = compile_lazily(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s'\"]+")
_URL = compile_lazily(r"\s*[A-Za-z][A-Za-z0-9+.-]*://\S+\s*")
_SIGNATURE = frozenset(
    [
        "x-amz-signature",
        "x-amz-credential",
        "x-amz-security-token",
        "awsaccesskeyid",
        "signature",
        "sig",
        "x-goog-signature",
        "x-goog-credential",
        "googleaccessid",
        "token",
        "access_token",
        "key",
        "api_key",
    ]
)
_SECRET_KEY = compile_lazily(
    r"pass(?:word|wd|phrase)|secret|token|credential|api_?key|access_?key|private_?key",
    re.IGNORECASE,
)


def looks_like_credential(text: str) -> bool:
    """Whether the text contains a token or private key, or is a URL with a credential."""
    return _TOKEN.search(text) is not None or url_has_credential(text)


def any_credential(texts: Sequence[str]) -> bool:
    """Whether any of many texts looks like a credential; no pattern matches across a line end."""
    joined = "\n".join(texts)
    has_token = any(start in joined for start in _STARTS) and _TOKEN.search(joined) is not None
    may_have_url = "@" in joined or "?" in joined
    return has_token or (may_have_url and any(map(url_has_credential, texts)))


def mask_credentials(problem: Diagnostic) -> Diagnostic:
    """Mask credentials in the texts of a problem."""
    return replace(
        problem,
        summary=_mask(problem.summary),
        detail=_mask(problem.detail),
        address=problem.address and _mask(problem.address),
    )


def _mask(text: str) -> str:
    if not looks_like_credential(text) and "://" not in text:
        return text
    text = _ANY_URL.sub(lambda url: HIDDEN if url_has_credential(url[0]) else url[0], text)
    return _WHOLE_TOKEN.sub(HIDDEN, text)


def has_credential(text: str) -> bool:
    """Whether a credential is anywhere in a text."""
    return _mask(text) != text


def url_has_credential(text: str) -> bool:
    """Whether a text is a URL with a password or with a signature in its query."""
    if ("@" not in text and "?" not in text) or _URL.fullmatch(text) is None:
        return False
    try:
        parts = urlsplit(text.strip())
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return True
    return parts.password is not None or any(name.lower() in _SIGNATURE for name, _ in pairs)


def is_secret_key(key: str) -> bool:
    """Whether the values of a key are probably secret."""
    return _SECRET_KEY.search(key) is not None
