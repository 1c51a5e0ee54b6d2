from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import by_text
from trainctl.model.source_uri import SourceUri, parse_source


@pytest.mark.parametrize(("text", "parts"), by_text("sources/uris"))
def test_every_scheme_is_parsed(text: str, parts: dict[str, Any]) -> None:
    source = parse_source(text)
    assert source.name == parts.get("name", source.name)
    assert source == SourceUri(text, **{key: parts[key] for key in parts if key != "name"})


@pytest.mark.parametrize(("text", "advice"), by_text("sources/invalid_uris"))
def test_an_invalid_source_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)) as caught:
        parse_source(text)
    assert "['/']" not in str(caught.value)
    assert "s3cr3tvalue" not in str(caught.value)


def test_a_relative_path_becomes_absolute_once(tmp_path: Path) -> None:
    inside = parse_source("file:./a/../b").within(tmp_path)
    assert inside.text == f"file://{tmp_path}/b"
    assert inside.within(Path("/elsewhere")) == inside
    assert parse_source("hf://a/b").within(tmp_path) == parse_source("hf://a/b")
