"""Saving a plan: whole or not at all, and readable by its owner only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainctl.cli.plan_execution import ExecutionFlags
from trainctl.cli.plans import load_plan, save_plan
from trainctl.desired.values import DesiredState
from trainctl.errors import PermissionDenied, StorageError, UsageError
from trainctl.model.address import Address
from trainctl.plan.diff import plan_digest
from trainctl.plan.values import ImageRow, Plan

PLAN = Plan("lineage", 3, "sha256:m", (), digest=plan_digest((), "lineage", ""))


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    """Nobody else may read it, and nothing lies beside it."""
    desired = DesiredState(tmp_path, {}, {})
    save_plan(tmp_path / "p.bin", PLAN, desired)
    save_plan(tmp_path / "p.bin", PLAN, desired)
    assert load_plan(tmp_path / "p.bin").plan == PLAN
    assert (tmp_path / "p.bin").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["p.bin"]


@pytest.mark.parametrize("name", ["there", "gone/p.bin"])
def test_where_it_cannot_be_saved_nothing_is_left(tmp_path: Path, name: str) -> None:
    """In place of a directory, or in one that is not there."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").touch()
    with pytest.raises(StorageError, match="cannot write"):
        save_plan(tmp_path / name, PLAN, DesiredState(tmp_path, {}, {}))
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_what_is_not_there_or_unreadable_is_wrong_usage(tmp_path: Path) -> None:
    """With how to make one."""
    with pytest.raises(UsageError) as caught:
        load_plan(tmp_path / "p.bin")
    assert "trainctl plan --out" in caught.value.detail
    with pytest.raises(UsageError, match="cannot read"):
        load_plan(tmp_path)


def test_a_reviewed_plan_needs_the_digests_of_its_images() -> None:
    """An image by name is refused with exit 13, unless that is allowed."""
    by_name = ImageRow(Address.parse("job.a"), 0, None, "acme/x:1", None, None)
    plan = replace(PLAN, images=(by_name,))

    with pytest.raises(PermissionDenied, match="the digest of acme/x:1 is unknown") as caught:
        ExecutionFlags().require_images(plan)
    assert caught.value.exit_code == 13
    ExecutionFlags(allow_unresolved_images=True).require_images(plan)
    ExecutionFlags().require_images(
        replace(plan, images=(replace(by_name, digest="sha256:" + "a" * 64),))
    )
