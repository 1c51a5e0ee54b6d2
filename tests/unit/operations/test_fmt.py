"""``trainctl fmt``: the same values and comments with indentation by two, however a manifest was indented."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from trainctl.errors import ManifestError, TrainctlError
from trainctl.manifest.read import parse_mapping
from trainctl.manifest.tree import to_plain
from trainctl.operations.manifests.fmt import format_files, format_text


@pytest.mark.parametrize("case", cases("operations/fmt"))
def test_a_manifest_is_indented(case: dict[str, str]) -> None:
    """By two, lists inside of their key, with comments and long texts."""
    before, after = (case[name].replace("~", "") for name in ("before", "after"))
    assert format_text(before) == after
    assert format_text(before.replace("\n", "\r\n")) == after


SCALARS = (
    st.text(alphabet="ab #:-\"\\\n'[{é", max_size=12)
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
)
VALUES = st.recursive(
    SCALARS | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet="abc-", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def parsed(text: str, name: str) -> str:
    """The values of a manifest, with their types."""
    return repr(to_plain(parse_mapping(text.encode(), name, [])))


def written(value: Any, column: int, chance: random.Random) -> str:
    """A value in YAML, indented by chance, with comments; begins after its key or dash."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        if isinstance(value, str) and value.strip(" \n") == value != "" and chance.random() < 0.7:
            inner = " " * (column + chance.randint(1, 4))
            return " |-\n" + "\n".join(inner + line for line in value.split("\n")) + "\n"
        return f" {json.dumps(value)}{chance.choice(['', '  ', '  # after'])}\n"
    at = column + (
        chance.randint(1, 4) if isinstance(value, dict) or column < 0 else chance.randint(0, 4)
    )
    at = max(at, 0)
    text = chance.choice(["\n", "  # opens\n"])
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        text += chance.choice(["", "", "\n\n", " " * at + "# above\n"])
        head = f"{json.dumps(key)}:" if isinstance(value, dict) else "-"
        text += " " * at + head + written(item, at, chance)
    return text


@given(
    st.dictionaries(st.text(alphabet="abc", min_size=1), VALUES, min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_formatting_changes_only_space(tree: dict[str, Any], chance: random.Random) -> None:
    """However it is indented: the same values and words, and a second time nothing changes."""
    text = written(tree, -1, chance).lstrip(" ")
    after = format_text(text)
    assert parsed(after, "trainctl.yaml") == parsed(text, "trainctl.yaml")
    assert after.split() == text.split()
    assert format_text(after) == after


def test_a_file_whose_values_would_change_is_refused(tmp_path: Path) -> None:
    """Blank lines at the end of a text that keeps them."""
    (tmp_path / "trainctl.yaml").write_text("a: |+\n  x\n\n\n")
    with pytest.raises(TrainctlError, match="without changing its values"):
        list(format_files(tmp_path))
    (tmp_path / "trainctl.yaml").write_text("a: [\n")
    with pytest.raises(ManifestError):
        list(format_files(tmp_path))
