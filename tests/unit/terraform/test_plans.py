"""Plans of the program, as a review sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trainctl.errors import StalePlan
from trainctl.plugin_api.machines import MachinePlan
from trainctl.store.objects import MemoryObjects
from trainctl_terraform.module import NodeModule
from trainctl_terraform.settings import TerraformNode, TerraformSettings

SETTINGS = TerraformSettings(module="./m")


class Module:
    """An initialised module."""

    program, digest, settings = Path("/bin/tofu"), "d", SETTINGS
    backend, directory = "", Path("/data/modules/m")


def review(change: dict[str, Any], key: str = "k1") -> MachinePlan:
    module: Any = Module()
    inputs = {"name": "gpu-0", "key": key, "public_key": "ssh-ed25519 AAAA", "user_data": "#c"}
    node = NodeModule(
        module, MemoryObjects(), TerraformNode("key/gpu-0", "gpu", "gpu-0", inputs=inputs)
    )
    document = {
        "terraform_version": "1.11.0",
        "resource_changes": [{"address": "module.node.c.m", "change": change}],
        "output_changes": {"node": {"after": {"user": "u", "price_per_hour": 2.5}}},
    }
    return node.review(document, b"", b"")


def creation(key: str, size: int = 1) -> dict[str, Any]:
    tags = {"key": key, "token": "hunter2"}
    after = {"name": f"trainctl-{key}", "size": size, "tags": [tags], "password": "hunter2"}
    sensitive = {"tags": [{"token": True}], "password": True}
    return {"actions": ["create"], "before": None, "after": after, "after_sensitive": sensitive}


def test_a_review_has_no_sensitive_value_and_its_digest_no_key() -> None:
    """It covers what is done; the price is known before the machine exists."""
    plan = review(creation("k1"))

    assert "hunter2" not in json.dumps(plan.changes)
    assert plan.changes[0]["values"]["name"] == "trainctl-<key>"
    assert (plan.planner, plan.node.price_per_hour) == ("tofu 1.11.0", 2.5)
    assert plan.digest == review(creation("k2"), "k2").digest
    assert plan.digest != review(creation("k1", size=2)).digest


def test_a_review_shows_values_that_change() -> None:
    change = creation("k1") | {"actions": ["delete", "create"], "replace_paths": [["size"]]}
    before = {"before": {**change["after"], "size": 4}, "before_sensitive": {"password": True}}

    [shown] = review(change | before).changes

    assert shown["values"]["size"] == 1
    assert "name" not in shown["values"]
    assert "password" not in shown["values"]
    assert shown["replace_paths"] == ["size"]
    assert review({"actions": ["no-op"]}).changes == ()


class Interrupted(NodeModule):
    """A node whose state has changed since its plan was made."""

    rest: ClassVar[MachinePlan]

    def state(self) -> bytes:
        return b"changed"

    def plan(self, *options: str) -> MachinePlan:
        return self.rest


def test_a_plan_is_finished_after_an_interruption_only_by_changes_that_it_has() -> None:
    """Not by another change of the same resource."""
    module: Any = Module()
    node = Interrupted(
        module, MemoryObjects(), TerraformNode("key/gpu-0", inputs={"public_key": "k"})
    )
    reviewed = planned(node, b"all", create("a"), create("b"))

    Interrupted.rest = planned(node, b"rest", create("b"))
    assert node.program_plan(reviewed) == b"rest"

    Interrupted.rest = planned(node, b"more", create("b") | {"actions": ["delete", "create"]})
    with pytest.raises(StalePlan, match="has changed since"):
        assert node.program_plan(reviewed) == b"rest"


def create(name: str) -> dict[str, Any]:
    return {"address": name, "actions": ["create"], "after": {"size": 1}}


def planned(node: NodeModule, file: bytes, *changes: dict[str, Any]) -> MachinePlan:
    """A plan for a state without anything."""
    items = [{"address": each["address"], "change": each} for each in changes]
    return node.review({"terraform_version": "1.11.0", "resource_changes": items}, file, b"")
