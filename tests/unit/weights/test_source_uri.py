from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import by_text
from trainctl.model.source_uri import SourceUri, parse_source


@pytest.mark.parametrize(("text", "parts"), by_text("sources/uris"))
def test_every_scheme_is_parsed(text: str, parts: dict[str, Any]) -> None:
    assert parse_source(text) == SourceUri(text, **parts)


@pytest.mark.parametrize(("text", "advice"), by_text("sources/invalid_uris"))
def test_an_invalid_source_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)) as caught:
        parse_source(text)
    assert "['/']" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "hf://user:s3cr3tvalue@a/b",
        "hf://s3cr3tvalue@a/b",
        "https://s3cr3tvalue@host/x",
        "https://user:s3cr3tvalue@host/x",
        "s3://AKIA:s3cr3tvalue@bucket/x",
        "https://host/x?X-Amz-Signature=s3cr3tvalue",
        "https://host/x?sig=s3cr3tvalue",
        "https://host/x?access_token=s3cr3tvalue",
        "https://host/x?apikey=s3cr3tvalue",
    ],
)
def test_a_secret_in_a_source_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="auth") as caught:
        parse_source(text)
    assert "s3cr3tvalue" not in str(caught.value)


def test_a_relative_path_becomes_absolute_once(tmp_path: Path) -> None:
    inside = parse_source("file:./a/../b").within(tmp_path)
    assert inside.text == f"file://{tmp_path}/b"
    assert inside.within(Path("/elsewhere")) == inside
    assert parse_source("hf://a/b").within(tmp_path) == parse_source("hf://a/b")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf://a/b@main", "b"),
        ("s3://xyz/y/z/", "z"),
        ("s3://bucket", "bucket"),
        ("https://host/a/model%20v1.bin?download=true", "model v1.bin"),
        ("https://host/get?id=3", "get"),
    ],
)
def test_the_name_is_the_last_part(text: str, name: str) -> None:
    assert parse_source(text).name == name
