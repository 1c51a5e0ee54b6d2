"""The plan digest over random edits: equal if and only if an apply would do the same to the same."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.projects.manifests import schema_of
from tests.support.projects.plans import LINEAGE, NODE, at, source_of, state_after, with_facts
from trainctl.base.json import canonical
from trainctl.desired.build import build
from trainctl.ledger.state import State
from trainctl.manifest.read import read
from trainctl.model.run import RunStatus
from trainctl.model.trust import PlanPolicy
from trainctl.plan.changes import with_images
from trainctl.plan.plan_file import read_plan, write_plan
from trainctl.plan.planner import make_plan
from trainctl.plan.values import CodeTree, Plan, PlanInputs, PlanOptions, WeightsFacts
from trainctl.plugin_api.provider import Node

MEANING: dict[str, list[Any]] = {
    "command": ["train --lr 1", "train --lr 1.0", "train --lr 10", "train  --lr 1"],
    "variable": ["a", "b", "", "{}", "null"],
    "priority": [0, 1, 10],
    "label": ["x", "y", 'x"'],
    "image": ["acme/train:1", "acme/train:2"],
    "image_digest": ["sha256:" + "a" * 64, "sha256:" + "b" * 64, None],
    "engine": ["docker", "podman", None],
    "rerun_on": [["config"], ["code", "config"], ["weights"]],
    "prevent_destroy": [True, False],
    "follows": [True, False],
    "secret_variable": ["TOKEN", "OTHER"],
    "secret_version": ["1", "2", None],
    "checkpoints": [None, "s3://acme/one", "s3://acme/two"],
    "keep_last": [None, 1, 3],
    "checkpointing": [True, False],
    "mirror": [None, "s3://acme/mirror", "s3://other/mirror"],
    "mount": ["/app/w", "/app/v"],
    "patterns": [None, ["*.bin"], ["*.json", "*.bin"]],
    "pin": [1, 2, 3],
    "code": ["a", "b", "c"],
    "gpus": [1, 2, 8],
    "lineage": [LINEAGE, "other"],
    "cluster_version": [1, 2, 3],
    "live_version": [1, 2],
    "live_run": ["run0001", "run0007"],
    "live_priority": [3, 4],
    "policies": [(), (1,), (2,), (1, 2)],
    "replaced": [False, True],
}
"""Values that decide what an apply does; the first of each is the initial one."""

LOOKS: dict[str, list[Any]] = {
    "form": ["yaml", "toml", "json"],
    "order": list(range(6)),
    "directory": ["/", "/usr"],
    "files": [1, 2],
    "serial": [3, 40],
    "unread_version": [1, 9],
    "unused_secret": [None, "SOME", "OTHER"],
    "policy_file": ["trust.toml:3", "/etc/trust.toml:9"],
    "free": [10**12, 10**13],
    "mirrored": [0, 1],
    "idle_code": ["a", "b"],
    "written_by": ["0.1.0", "0.2.0"],
    "saved": [False, True],
}
"""Values that don't."""


def manifest(world: Mapping[str, Any]) -> dict[str, Any]:
    secrets = {"used": {"from": "env", "name": "USED"}}
    if world["secret_version"]:
        secrets["used"]["version"] = world["secret_version"]
    if world["unused_secret"]:
        secrets["unused"] = {"from": "env", "name": world["unused_secret"]}
    checkpoints = {"url": world["checkpoints"], "keep_last": world["keep_last"]}
    job = {
        "cluster": "lab",
        "image": {"base_image": world["image"]},
        "compute": {"accelerator": f"H100:{world['gpus']}"},
        "labels": {"team": world["label"], "same": "z"},
        "priority": world["priority"],
        "lifecycle": {"rerun_on": world["rerun_on"], "prevent_destroy": world["prevent_destroy"]},
        "depends_on": ["job.idle"] if world["follows"] else [],
        "weights": ["base"],
        "runtime": {
            "start_commands": [world["command"]],
            "environment_variables": {
                "A": world["variable"],
                world["secret_variable"]: {"secret": "used"},
            },
            "checkpointing_config": {"enabled": world["checkpointing"]},
            "engine": world["engine"],
        },
    }
    patterns = {"allow_patterns": world["patterns"]}
    weights = {"source": "hf://acme/base", "mount_location": world["mount"], **patterns}
    idle = {"cluster": "lab", "runtime": {"start_commands": ["idle"]}}
    live = {**idle, "priority": world["live_priority"], "runtime": {"start_commands": ["new"]}}
    document = {
        "project": {"name": "demo"},
        "secrets": secrets,
        "clusters": {"lab": {"provider": "local", "gpus": 8}},
        "weights": {"base": weights},
        "checkpoints": checkpoints,
        "mirror": {"url": world["mirror"]},
        "jobs": {"train": job, "idle": idle, "live": live},
    }
    return dict(without_nulls(document))


def without_nulls(value: Any) -> Any:
    """TOML has no null: leave out such keys, and sections without keys."""
    if isinstance(value, dict):
        kept = {key: without_nulls(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in kept.items() if item != {}}
    return value


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same keys in another order."""
    if not isinstance(value, dict):
        return value
    keys = list(value)
    chance.shuffle(keys)
    return {key: shuffled(value[key], chance) for key in keys}


def toml(value: Any) -> str:
    if isinstance(value, dict):
        members = ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items())
        return f"{{{members}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def written(document: dict[str, Any], world: Mapping[str, Any]) -> dict[str, bytes]:
    document = shuffled(document, random.Random(world["order"]))
    keys = list(document)
    parts = [keys] if world["files"] == 1 else [keys[:3], keys[3:]]
    suffix = "toml" if world["form"] == "toml" else "yaml"
    names = [f"trainctl.{suffix}", f"more.trainctl.{suffix}"]
    files = {}
    for name, part in zip(names, parts, strict=False):
        section = {key: document[key] for key in part}
        text = f"# {name}\n{yaml.safe_dump(section, sort_keys=False)}"
        if world["form"] == "toml":
            text = "".join(f"{key} = {toml(item)}\n" for key, item in section.items())
        if world["form"] == "json":
            text = json.dumps(section)
        files[name] = text.encode()
    return files


def recorded(world: Mapping[str, Any], applied: State) -> State:
    """The state: the cluster, a job that is done, and one that runs with another command."""
    resources = dict(applied.resources)
    live = resources[at("job.live")]
    attributes = dict(live.attributes)
    attributes["runtime"] = {**attributes["runtime"], "start_commands": ["old"]}
    run = {**live.outputs["runs"][0], "id": world["live_run"], "status": RunStatus.RUNNING.value}
    resources[at("job.live")] = replace(live, attributes=attributes, outputs={"runs": [run]})
    for created in ("job.train", "weights.base"):
        del resources[at(created)]
    versions = {
        at("project.demo"): 1,
        at("cluster.lab"): world["cluster_version"],
        at("job.live"): world["live_version"],
        at("job.idle"): 1,
        at("job.elsewhere"): world["unread_version"],
    }
    return State(world["lineage"], world["serial"], resources=resources, versions=versions)


def planned(world: Mapping[str, Any], applied: State | None = None) -> Plan:
    """The plan of a world, over the state that was applied."""
    files = written(manifest(world), world)
    documents = read(Path(world["directory"]), files)
    desired = build(documents, provider_schema=schema_of, providers=["local"])
    codes = {"job.train": world["code"], "job.idle": world["idle_code"], "job.live": "l"}
    source = source_of("hf://acme/base@main", world["pin"], revision=str(world["pin"]) * 40)
    limits = [PlanPolicy(world["policy_file"], max_hourly_cost=float(n)) for n in world["policies"]]
    inputs = PlanInputs(
        desired,
        recorded(world, applied) if applied else State(),
        code={at(job): CodeTree(f"sha256:{code * 64}", 1, 1) for job, code in codes.items()},
        weights={at("weights.base"): WeightsFacts(source, world["mirrored"], locked=True)},
        nodes={at("cluster.lab"): (with_facts(NODE, disk_free=world["free"]),)},
        planned_nodes={at("cluster.lab"): (Node("lab", "lab-0"),)},
        policies=tuple(reversed(limits) if world["order"] % 2 else limits),
        options=PlanOptions(replace=(at("job.idle"),) if world["replaced"] else ()),
    )
    plan = make_plan(inputs)
    result = {world["image"]: world["image_digest"]} if world["image_digest"] else {}
    plan = with_images(plan, result)
    if world["saved"]:
        plan = read_plan(write_plan(plan, desired, world["written_by"]), "p.bin").plan
    return plan


def meaning(world: Mapping[str, Any]) -> str:
    """The values that decide, without those that have no effect next to the others."""
    effective = {name: world[name] for name in MEANING}
    if not world["checkpointing"]:
        effective["checkpoints"] = effective["keep_last"] = None
    if not world["replaced"]:
        effective.pop("replaced")
    else:
        effective["idle_code"] = world["idle_code"]  # its new run has today's code
    return canonical(effective).decode()


def check_edits(count: int, chance: random.Random) -> None:
    """Edit a world, and compare the digest with the meaning after each edit."""
    world = {name: values[0] for name, values in {**MEANING, **LOOKS}.items()}
    applied = state_after(planned(world))
    first = dict(world)
    digests: dict[str, str] = {}
    meanings: dict[str, str] = {}
    for _ in range(count):
        fields = MEANING if chance.random() < 0.6 else LOOKS
        name = chance.choice(list(fields))
        world[name] = chance.choice(fields[name])
        if chance.random() < 0.02:
            world |= {name: first[name] for name in MEANING}
        plan = planned(world, applied)
        key = meaning(world)
        assert digests.setdefault(key, plan.digest) == plan.digest, f"false change: {world}"
        assert meanings.setdefault(plan.digest, key) == key, f"false same: {world}"


def test_a_digest_is_equal_for_equal_meanings_only() -> None:
    """Over edits of the manifest's meaning and form, of the state and of the surroundings."""
    check_edits(60, random.Random(0))


@pytest.mark.long
def test_a_digest_is_equal_for_equal_meanings_only_over_many_edits() -> None:
    check_edits(2500, random.Random(1))


def test_each_meaning_counts_alone() -> None:
    world = {name: values[0] for name, values in {**MEANING, **LOOKS}.items()}
    world |= {"checkpoints": "s3://acme/one"}
    applied = state_after(planned(world))
    digest = planned(world, applied).digest
    for fields, same in ((MEANING, False), (LOOKS, True)):
        for name, values in fields.items():
            for value in values:
                if value == world[name]:
                    continue
                other = planned({**world, name: value}, applied).digest
                assert (other == digest) is same, f"{name}: {value}"


def test_the_world_has_every_kind_of_change() -> None:
    """A new job and weights, a stopped run, and no-ops."""
    world = {name: values[0] for name, values in {**MEANING, **LOOKS}.items()}
    plan = planned(world, state_after(planned(world)))
    actions = {str(change.address): change.action.name for change in plan.changes}
    stops = {str(change.address): change.stops.id for change in plan.changes if change.stops}

    assert actions == {
        **dict.fromkeys(("project.demo", "cluster.lab", "job.idle"), "NOOP"),
        **dict.fromkeys(("weights.base", "job.train"), "CREATE"),
        "job.live": "REPLACE",
    }
    assert stops == {"job.live": "run0001"}
    assert {image.digest for image in plan.images} == {world["image_digest"]}
