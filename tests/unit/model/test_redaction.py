"""Redaction of secrets by value."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from functools import partial
from urllib.parse import quote, quote_plus

import pytest

from trainctl.model.redaction import MASK, Redactor

SECRET = "pä\"ss w/rd+%\\x<&>\n'a second' line"


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": lambda value: json.dumps(value)[1:-1],
    "json-utf8": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "repr": lambda value: repr(value)[1:-1],
    "ascii": lambda value: ascii(value)[1:-1],
    "path": quote,
    "url": partial(quote, safe=""),
    "form": quote_plus,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "html": html.escape,
    "html-json": lambda value: html.escape(json.dumps(value, ensure_ascii=False)[1:-1]),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_is_masked_in_every_spelling(spelling: str) -> None:
    redactor = Redactor()
    redactor.register(SECRET)
    spelled = SPELLINGS[spelling](SECRET)
    assert redactor.redact(f"before {spelled} after") == f"before {MASK} after"


def test_lines_of_secrets_and_secrets_that_begin_alike_are_masked() -> None:
    redactor = Redactor()
    for secret in ("first line of it\nsecond line of it\n", "password", "password-and-more"):
        redactor.register(secret)
    assert redactor.redact("x second line of it x") == f"x {MASK} x"
    assert redactor.redact("password-and-more") == MASK


def test_signatures_of_presigned_urls_are_masked() -> None:
    url = "https://b.example/k?X-Amz-Date=1&X-Amz-Signature=0123456789abcdef0123"
    assert Redactor().redact(url) == f"https://b.example/k?X-Amz-Date=1&X-Amz-Signature={MASK}"


def test_the_beginning_of_a_secret_is_held_back() -> None:
    redactor = Redactor()
    redactor.register("hunter2hunter2")
    assert redactor.safe_length("ok hunter2hu") == len("ok ")
    assert redactor.safe_length("ok then") == len("ok then")
    assert redactor.safe_length("ok hunter2hunter") == len("ok ")
