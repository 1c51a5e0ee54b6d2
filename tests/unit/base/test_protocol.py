"""The verbs of the node program are what the protocol says they are."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from docs.generate.protocol import METHODS
from trainctl.node import __main__ as program

WHERE = {method: where for methods in program._ALL_METHODS for method, where in methods.items()}


def test_the_program_has_the_verbs_of_the_protocol() -> None:
    assert WHERE.keys() == METHODS.keys()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_verb_takes_and_returns_what_the_protocol_says(name: str) -> None:
    """The function is annotated with the very types; one that streams writes bytes."""
    method, hints = METHODS[name], get_type_hints(program._find_function(WHERE[name]))

    assert hints["request"] is method.request
    assert hints["return"] is (type(None) if method.answer is bytes else method.answer)
    assert (name in program._RAW_METHODS) is (method.answer is bytes)
