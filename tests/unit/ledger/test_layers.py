"""The mapping that states are made of."""

from __future__ import annotations

import pytest

from trainctl.ledger.layers import MERGE_AT, Layers


def test_a_frozen_copy_stays() -> None:
    """Setting, replacing and deleting afterwards, past merging, is not seen in what was handed out."""
    layers: Layers[int, int] = Layers({1: 1, 2: 2})
    frozen = layers.freeze()
    for number in range(3 * MERGE_AT):
        layers[number] = -number - 1
    del layers[2]
    assert dict(frozen) == {1: 1, 2: 2}
    assert len(layers) == 3 * MERGE_AT - 1
    assert 2 not in layers.freeze()
    assert layers.freeze()[1] == -2


def test_deleting_is_by_name() -> None:
    """What isn't there can't be deleted or read; what was deleted may be set again."""
    layers: Layers[str, int] = Layers({"a": 1})
    del layers["a"]
    with pytest.raises(KeyError):
        del layers["a"]
    with pytest.raises(KeyError):
        layers["a"]
    with pytest.raises(KeyError):
        layers.freeze()["a"]
    layers["a"] = 2
    assert layers.freeze() == {"a": 2}
    assert list(layers) == ["a"]
