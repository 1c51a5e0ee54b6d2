"""``state.encryption`` of a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import desired, problems
from trainctl.encryption.keys import KeySource

STATE = "secrets: {a: {from: env}}\nstate: {url: 'file:///s', encryption: {keys: %s}}\n"


def test_the_keys_are_in_their_order(tmp_path: Path) -> None:
    """The first one encrypts; without a section there is none."""
    made = desired(tmp_path, STATE % "[{id: k2, secret: a}, {id: k1, secret: a}]")
    assert made.state.keys == (KeySource("k2", "a"), KeySource("k1", "a"))
    assert desired(tmp_path, "state: {url: 'file:///s'}\n").state.keys == ()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("[]", "encryption.keys is empty"),
        ("[{id: k1}]", "secret is missing"),
        ("[{id: k1, secret: b}]", "undeclared secret 'b'"),
        ("[{id: k1, secret: a}, {id: k1, secret: a}]", "two keys have the same id"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, keys: str, why: str) -> None:
    """Each by its own sentence."""
    assert [why in problem.summary for problem in problems(tmp_path, STATE % keys)] == [True]
