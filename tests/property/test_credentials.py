"""Credentials are found in many texts at once as in each of them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trainctl.model.credentials import _TOKEN, any_credential, looks_like_credential

TOKENS = st.from_regex(re.compile(_TOKEN.pattern), fullmatch=True)
URLS = st.sampled_from(
    ["https://me:pw@host/x", "s3://b/k?sig=1", "a@b", "why?", "https://host/?q=1"]
)
WORDS = st.text("hfAKIgskxoyJ-_.@?:/0b\n ", max_size=30)


@given(TOKENS)
def test_every_token_is_found(token: str) -> None:
    assert any_credential(["disk-1", f"a {token}", "b"]) == looks_like_credential(f"a {token}")
    assert any_credential([token]) == looks_like_credential(token)


@given(st.lists(st.one_of(WORDS, URLS, TOKENS, st.tuples(WORDS, TOKENS).map("".join)), max_size=5))
def test_texts_are_judged_alone(texts: list[str]) -> None:
    assert any_credential(texts) == any(map(looks_like_credential, texts))
