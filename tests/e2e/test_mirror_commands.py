"""Which mirror ``trainctl mirror`` is about."""

from __future__ import annotations

import pytest

from tests.support.project import Project


@pytest.mark.parametrize("command", [("list",), ("verify",), ("gc", "--dry-run")])
def test_a_manifest_that_is_wrong_names_no_mirror(fresh: Project, command: tuple[str, ...]) -> None:
    """It may mean another than the usual one, so that isn't looked at in its place; without a manifest it is."""
    without = fresh.run("mirror", *command)
    fresh.write({"trainctl.yaml": "mirror: {uurl: 'file:///elsewhere'}\n"})
    wrong = fresh.run("mirror", *command, code=1)

    assert without.stdout
    assert "unknown key 'uurl'" in wrong.stderr
    assert wrong.stdout == ""
