"""JSON objects that are kept as text."""

from __future__ import annotations

import json

import pytest

from trainctl.model.json_text import JsonText, json_text

VALUE = {"b": 1.0, "a": [{"é": None}, 'x"\n'], "c": {}}


@pytest.mark.parametrize("text", [json_text(VALUE), json.dumps(VALUE, sort_keys=True)])
def test_it_is_the_mapping_that_it_names(text: str) -> None:
    """Whatever its spaces and the order of its keys; its text stays as it is."""
    assert JsonText(text) == VALUE == JsonText(text)
    assert JsonText(text) == JsonText(json_text(VALUE))
    assert {**JsonText(text)} == VALUE
    assert JsonText(text) != {**VALUE, "b": 2}
    assert json_text(JsonText(text)) == text
