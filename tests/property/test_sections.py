"""Sections that are read without pydantic are those that pydantic reads, and equal."""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainctl.manifest.check import manifest_type
from trainctl.manifest.sections import UndecidedValue, read_section
from trainctl.manifest.text import parse_yaml
from trainctl.manifest.tree import SourceFloat, to_plain
from trainctl.model.specs.document import Manifest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/trainctl.yaml"))
OTHERS = """
version: 1
vars: {name: a, count: 3, rate: 1e-3, flag: true}
secrets: {hub: {from: env, name: HF}, file: {from: file, path: ./x, version: 2}, do: {from: command, command: [a, b]}}
checkpoints: {url: 's3://bucket/c'}
state: {url: 's3://bucket/s', encryption: {keys: [{id: k, secret: hub}]}}
reuse_from: ['s3://bucket/o']
projects: {a: {description: d, labels: {team: t}, lifecycle: {prevent_destroy: true, ignore_changes: [labels]}}, b-1: {name: B}}
clusters: {lab: {provider: ssh, price_per_hour: 2.5, hosts: [a, {name: b}], cache: {node: {dir: /c, size: 2TB}, max_rate: 100MB}}}
weights: {base: 'hf://o/r@v1', other: {source: 's3://bucket/m', allow_patterns: ['*.safetensors'], auth_secret_name: hub}}
caches: {c: {cluster: lab, project: a, size: 1TB}, t: {scope: team}}
moved: [{from: job.a, to: job.b}]
removed: [{from: cluster.x, destroy: false}]
import: [{to: job.sft, id: lab/n/abc}]
jobs:
  sft:
    project: a
    cluster: lab
    code: ./src
    compute: {node_count: 2, accelerator: 'H100:8', memory: 64Gi}
    weights: [base, {source: 'file:./w', mount_location: models/w}]
    mounts: [{host_path: /data, mount_location: /data}]
    runtime:
      start_commands: [python train.py]
      environment_variables: {A: b, S: {secret: hub}}
      checkpointing_config: {enabled: true}
      load_checkpoint_config: {enabled: true, checkpoints: [{typ: latest, job_id: sft}]}
      ulimits: {memlock: -1}
    matrix: {lr: [1e-3, 0.1], include: [{lr: 0.5, seed: 3}]}
    max_duration: 2h
    retry: {max_attempts: 3, delay: 10}
    interactive_session: {trigger: on_failure, timeout_minutes: 60}
    labels: {x: y}
    lifecycle: {rerun_on: [config, code]}
"""


@cache
def corpus() -> list[Any]:
    texts = [*(path.read_text() for path in EXAMPLES), OTHERS]
    return [to_plain(root) for text in texts if (root := parse_yaml(text, "f", []))]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each container in a value, and its keys or indexes."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    below = [value[key] for key in keys if isinstance(value[key], dict | list)]
    return [(value, key) for key in keys] + [place for each in below for place in places(each)]


TEXTS = [
    "",
    " ",
    "a",
    "A b",
    "é",
    "a\n",
    "/x",
    "../x",
    "0",
    "10s",
    "64Gi",
    "hf://o/r",
    "job.sft",
    "config",
    "H100:8",
    "env",
    "x" * 200,
]
ATOMS = st.one_of(
    st.sampled_from(TEXTS),
    st.integers(-2, 3),
    st.sampled_from([10**30, 1441, 2000]),
    st.booleans(),
    st.none(),
    st.sampled_from(["1.5", "-0.0", "1e30", "3.0"]).map(SourceFloat),
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["secret", "source", "name", "enabled", "in one word"]),
            inner,
            max_size=2,
        ),
    ),
    max_leaves=3,
)


def test_a_manifest_of_all_sections_is_read() -> None:
    assert repr(read_section(Manifest, corpus()[-1])) == repr(
        manifest_type().validate_python(corpus()[-1])
    )


def test_the_quickstart_needs_no_pydantic() -> None:
    quickstart = next(path for path in EXAMPLES if path.parent.name == "quickstart")
    manifest = read_section(Manifest, corpus()[EXAMPLES.index(quickstart)])
    assert "train" in manifest.jobs


@given(st.data())
def test_pydantic_reads_the_same(data: st.DataObject) -> None:
    """In manifests with up to three values changed, added or removed."""
    values = copy.deepcopy(data.draw(st.sampled_from(corpus()), label="manifest"))
    for _ in range(data.draw(st.integers(0, 3), label="changes")):
        container, key = data.draw(
            st.sampled_from(places(values) or [(values, "x")]), label="place"
        )
        how = data.draw(st.sampled_from(["value", "value", "remove", "add"]), label="how")
        if how == "value":
            container[key] = data.draw(VALUES, label="value")
        elif how == "remove":
            container.pop(key, None) if isinstance(container, dict) else container.pop(key)
        elif isinstance(container, dict):
            container[data.draw(st.sampled_from(["source", "other keys", "x", "A b", "é"]))] = (
                data.draw(VALUES)
            )
    try:
        expected = repr(manifest_type().validate_python(values))
    except ValidationError:
        expected = "invalid"
    with suppress(UndecidedValue):
        assert repr(read_section(Manifest, values)) == expected
