"""Every spelling in which a secret may leave this process is masked."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from trainctl.model.redaction import MASK, Redactor

SECRET = 'pä"ss w/rd+%\\x<&>'


@pytest.mark.parametrize(
    "spelling",
    [
        str,
        lambda value: json.dumps(value)[1:-1],
        lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
        lambda value: repr(value)[1:-1],
        lambda value: ascii(value)[1:-1],
        quote,
        lambda value: quote(value, safe=""),
        quote_plus,
        lambda value: base64.b64encode(value.encode()).decode(),
        html.escape,
        lambda value: html.escape(json.dumps(value, ensure_ascii=False)[1:-1]),
    ],
    ids=[
        "plain",
        "json",
        "json-utf8",
        "repr",
        "ascii",
        "path",
        "url",
        "form",
        "base64",
        "html",
        "html-json",
    ],
)
def test_a_secret_is_masked_however_it_is_spelled(spelling: Callable[[str], str]) -> None:
    """Nothing of the value stays, and the text around it does."""
    redactor = Redactor()
    redactor.register(SECRET)
    assert redactor.redact(f"before {spelling(SECRET)} after") == f"before {MASK} after"


def test_each_line_of_a_long_secret_is_one() -> None:
    """A private key may be shown line by line."""
    redactor = Redactor()
    redactor.register("first line of it\nsecond line of it\n")
    assert redactor.redact("x second line of it x") == f"x {MASK} x"


def test_the_longer_of_two_secrets_is_masked_whole() -> None:
    """One that begins another leaves no rest of it."""
    redactor = Redactor()
    redactor.register("password")
    redactor.register("password-and-more")
    assert redactor.redact("password-and-more") == MASK


def test_signatures_of_urls_are_masked_unknown() -> None:
    """A presigned URL is worth what it opens; the rest of it stays readable."""
    url = "https://b.example/k?X-Amz-Date=1&X-Amz-Signature=0123456789abcdef0123"
    assert Redactor().redact(url) == f"https://b.example/k?X-Amz-Date=1&X-Amz-Signature={MASK}"


def test_an_end_that_may_begin_a_secret_is_held_back() -> None:
    """What is shown while it arrives never shows half a secret."""
    redactor = Redactor()
    redactor.register("hunter2hunter2")
    assert redactor.safe_length("ok hunter2hu") == len("ok ")
    assert redactor.safe_length("ok then") == len("ok then")
    assert redactor.safe_length("ok hunter2hunter") == len("ok ")
