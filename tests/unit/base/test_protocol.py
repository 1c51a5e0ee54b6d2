"""The verbs of the node program are what the protocol says they are."""

from __future__ import annotations

import runpy
from typing import get_type_hints

import pytest

from tests.support.program import ROOT
from trainctl.base.protocol.verbs import VERBS
from trainctl.node import __main__ as program

WHERE = {verb: where for verbs in program._KNOWN for verb, where in verbs.items()}


def test_the_program_has_the_verbs_of_the_protocol() -> None:
    """No more and no fewer."""
    assert WHERE.keys() == VERBS.keys()


@pytest.mark.parametrize("name", sorted(VERBS))
def test_a_verb_takes_and_returns_what_the_protocol_says(name: str) -> None:
    """The function is annotated with the very types; one that streams writes bytes."""
    verb, hints = VERBS[name], get_type_hints(program._function(WHERE[name]))

    assert hints["request"] is verb.request
    assert hints["return"] is (type(None) if verb.answer is bytes else verb.answer)
    assert (name in program._RAW) is (verb.answer is bytes)


def test_the_page_of_the_protocol_is_the_generated_one() -> None:
    """``python docs/generate_protocol.py`` writes it."""
    generator = runpy.run_path(str(ROOT / "docs" / "generate_protocol.py"))
    assert generator["PAGE"].read_text(encoding="utf-8") == generator["page"]()
