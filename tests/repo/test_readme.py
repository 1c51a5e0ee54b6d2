"""The README names the two commands for newcomers."""

from __future__ import annotations

import re

from tests.support.projects.program import ROOT

README = (ROOT / "README.md").read_text()


def test_the_two_commands_of_a_newcomer_exist() -> None:
    for name in ("examples/quickstart/run", "tests/run"):
        assert re.search(rf"^ +{name}$", README, re.MULTILINE), name
        assert (ROOT / name).exists()
