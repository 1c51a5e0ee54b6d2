"""Documents to the whole wish: defaults, attributes, dependencies, what can't be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.projects.manifests import attributes, desired, problems, schema_of
from trainctl.base.json import canonical
from trainctl.desired.build import build, directory_name
from trainctl.desired.values import SecretSpec
from trainctl.manifest.read import read
from trainctl.model.specs.resource import LifecycleSpec

JOB = "runtime: {start_commands: [x]}"
CACHED = "runtime: {start_commands: [x], cache_config: {enabled: true}}"
SMALLEST = """\
clusters: {lab: {provider: ssh, hosts: [gpu-01]}}
jobs:
  sft:
    weights: [hf://Qwen/Qwen3-0.6B]
    runtime: {start_commands: [python train.py]}
"""
FULL = """\
version: 1
project: {name: qwen3-finetune, description: A test, labels: {team: nlp, cost: "7"}}
vars: {lr: 1.0e-5, nodes: 1, where: /app/models}
secrets:
  hf_access_token: {from: env, name: HF_TOKEN, version: 2}
  wandb: {from: file, path: wandb.key, redact: false}
mirror: {url: "file:///mirror"}
checkpoints: {url: "s3://acme-ckpt/runs", endpoint_url: "http://127.0.0.1:9000"}
state: {url: "file:///state"}
clusters:
  lab: {provider: local, nodes: 2, price_per_hour: 2, cache: {node: {dir: /nvme, size: 2TB}}}
weights:
  qwen3:
    source: hf://Qwen/Qwen3-0.6B@main
    mount_location: ${{ var.where }}//qwen3/
    auth_secret_name: hf_access_token
    allow_patterns: ["*.safetensors", "*.json"]
  data: s3://my-bucket/training-data
caches:
  work: {size: 1TB, dir: /mnt/cache}
jobs:
  sft:
    cluster: lab
    code: ./src/
    image: {base_image: "pytorch/pytorch:2.7.0"}
    compute: {accelerator: "H100:1", node_count: "${{ var.nodes }}", memory: 64Gi}
    weights: [qwen3, data, "file:./w", {source: "hf://a/b", mount_location: x}]
    runtime:
      start_commands:
        - python train.py --lr ${{ var.lr }} --model ${{ weights.qwen3.path }} --data ${{ weights.data.path }}
      environment_variables: {WANDB_API_KEY: {secret: wandb}, LR: "${{ var.lr }}"}
      cache_config: {enabled: true}
      checkpointing_config: {enabled: true, volume_size_gib: 10}
    priority: -1
    max_duration: 36h
    retry: {max_attempts: 3}
    labels: {a: "${{ job.name }} of ${{ project.name }}"}
    lifecycle: {rerun_on: [config, code], prevent_destroy: true, ignore_changes: [image]}
"""
FULL_TOML = """\
version = 1
vars = {lr = 1.0e-5, nodes = 1, where = "/app/models"}
mirror.url = "file:///mirror"
checkpoints = {url = "s3://acme-ckpt/runs", endpoint_url = "http://127.0.0.1:9000"}
state.url = "file:///state"

[project]
name = "qwen3-finetune"
description = "A test"
labels = {cost = "7", team = "nlp"}

[secrets]
wandb = {from = "file", path = "wandb.key", redact = false}
hf_access_token = {from = "env", name = "HF_TOKEN", version = 2}

[clusters.lab]
provider = "local"
nodes = 2
price_per_hour = 2.0
cache.node = {dir = "/nvme", size = "2TB"}

[weights]
data = "s3://my-bucket/training-data"
[weights.qwen3]
source = "hf://Qwen/Qwen3-0.6B@main"
mount_location = "${{ var.where }}//qwen3/"
auth_secret_name = "hf_access_token"
allow_patterns = ["*.safetensors", "*.json"]

[caches.work]
size = "1TB"
dir = "/mnt/cache"

[jobs.sft]
cluster = "lab"
code = "./src/"
weights = ["qwen3", "data", "file:./w", {source = "hf://a/b", mount_location = "x"}]
priority = -1
max_duration = "36h"
retry = {max_attempts = 3}
image.base_image = "pytorch/pytorch:2.7.0"
compute = {accelerator = "H100:1", node_count = "${{ var.nodes }}", memory = "64Gi"}
labels = {a = "${{ job.name }} of ${{ project.name }}"}
lifecycle = {rerun_on = ["config", "code"], prevent_destroy = true, ignore_changes = ["image"]}
[jobs.sft.runtime]
start_commands = ["python train.py --lr ${{ var.lr }} --model ${{ weights.qwen3.path }} --data ${{ weights.data.path }}"]
environment_variables = {LR = "${{ var.lr }}", WANDB_API_KEY = {secret = "wandb"}}
cache_config.enabled = true
checkpointing_config = {enabled = true, volume_size_gib = 10}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with code."""
    directory = tmp_path / "my project"
    (directory / "src").mkdir(parents=True)
    return directory


def test_the_smallest_manifest_is_complete(project: Path) -> None:
    """Every default is filled in; a provider that is not installed is a warning."""
    wish = desired(project, SMALLEST)
    assert [str(address) for address in wish.resources] == [
        "project.my-project",
        "cluster.lab",
        "weights.sft-0",
        "job.sft",
    ]
    job = attributes(wish, "job.sft")
    assert job["project"] == "my-project"
    assert job["cluster"] == "lab"
    assert job["code"] == "."
    assert job["compute"]["node_count"] == 1
    assert job["weights"][0]["address"] == "weights.sft-0"
    assert job["weights"][0]["mount_location"] == "weights/Qwen3-0.6B"
    assert attributes(wish, "weights.sft-0")["mount_location"] is None
    assert attributes(wish, "cluster.lab")["hosts"] == ["gpu-01"]
    assert [one.summary for one in wish.warnings] == ["provider 'ssh' is not installed"]
    assert wish.mirror.url is None
    assert wish.manifest_files == ("trainctl.yaml",)


def test_every_attribute_of_the_full_form(project: Path) -> None:
    """Exactly those of the house's list, resolved and normal."""
    wish = desired(project, FULL)
    assert attributes(wish, "project.qwen3-finetune") == {
        "name": "qwen3-finetune",
        "description": "A test",
        "labels": {"team": "nlp", "cost": "7"},
    }
    assert attributes(wish, "cluster.lab") == {
        "provider": "local",
        "nodes": 2,
        "gpus": 0,
        "cache": {"node": {"dir": "/nvme", "size": "2TB"}, "cluster": None},
        "price_per_hour": 2.0,
    }
    assert attributes(wish, "weights.qwen3") == {
        "source": "hf://Qwen/Qwen3-0.6B@main",
        "mount_location": "/app/models/qwen3",
        "auth": {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "hf_access_token"},
        "allow_patterns": ["*.safetensors", "*.json"],
        "ignore_patterns": None,
        "sha256": None,
    }
    assert attributes(wish, "cache.work") == {
        "scope": "project",
        "project": "qwen3-finetune",
        "cluster": "lab",
        "size": "1TB",
        "dir": "/mnt/cache",
    }
    job = attributes(wish, "job.sft")
    assert set(job) == {
        *("project", "cluster", "image", "compute", "runtime", "weights", "mounts"),
        *("secrets", "priority", "labels", "code", "max_duration", "retry"),
        *("matrix", "max_parallel", "depends_on"),
    }
    assert job["compute"]["accelerator"] == "H100"
    assert job["compute"]["node_count"] == 1
    assert job["code"] == "src"
    assert job["max_duration"] == "36h"
    assert job["retry"] == {"max_attempts": 3, "delay": "10s"}
    assert job["secrets"] == [{"name": "wandb", "version": None}]
    assert job["labels"] == {"a": "sft of qwen3-finetune"}
    assert job["runtime"]["environment_variables"] == {
        "WANDB_API_KEY": {"secret": "wandb"},
        "LR": "1.0e-5",
    }
    assert job["runtime"]["start_commands"] == [
        "python train.py --lr 1.0e-5 --model /app/models/qwen3 --data weights/training-data"
    ]
    assert [(one["address"], one["mount_location"]) for one in job["weights"]] == [
        ("weights.qwen3", "/app/models/qwen3"),
        ("weights.data", "weights/training-data"),
        ("weights.sft-0", "weights/w"),
        ("weights.sft-1", "x"),
    ]
    assert wish.secrets == {
        "hf_access_token": SecretSpec("hf_access_token", "env", "HF_TOKEN", "2"),
        "wandb": SecretSpec("wandb", "file", "wandb.key", None, redact=False),
    }
    assert wish.mirror.url == "file:///mirror"
    assert wish.checkpoints.url == "s3://acme-ckpt/runs"
    assert wish.state_url == "file:///state"


def test_dependencies_lifecycle_and_places(project: Path) -> None:
    """A job needs its project, cluster, weights and cache; a cache its project and cluster."""
    wish = desired(project, FULL)
    resources = {str(address): resource for address, resource in wish.resources.items()}
    job = resources["job.sft"]
    assert {str(one) for one in job.depends_on} == {
        *("project.qwen3-finetune", "cluster.lab", "cache.work"),
        *("weights.qwen3", "weights.data", "weights.sft-0", "weights.sft-1"),
    }
    assert [str(one) for one in resources["cache.work"].depends_on] == [
        "project.qwen3-finetune",
        "cluster.lab",
    ]
    assert resources["weights.qwen3"].depends_on == ()
    assert job.lifecycle == LifecycleSpec(True, ("image",), ("config", "code"))
    assert resources["weights.data"].lifecycle == LifecycleSpec()
    assert (job.provider, resources["weights.data"].provider) == ("local", "trainctl")
    assert str(job.where) == "trainctl.yaml:22:3"
    assert str(resources["weights.sft-0"].where) == "trainctl.yaml:27:28"


def test_yaml_and_toml_ask_for_the_same(tmp_path: Path) -> None:
    """Equal resources, secrets and digest; only names of files and places differ."""
    wishes = []
    for name, text in (("trainctl.yaml", FULL), ("trainctl.toml", FULL_TOML)):
        directory = tmp_path / name.replace(".", "-")
        (directory / "src").mkdir(parents=True)
        wishes.append(desired(directory, text, name))
    yaml, toml = wishes
    assert yaml.resources == toml.resources
    assert yaml.secrets == toml.secrets
    assert yaml.manifest_digest == toml.manifest_digest
    assert canonical([one.attributes for one in yaml.resources.values()]) == canonical(
        [one.attributes for one in toml.resources.values()]
    )


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("version: 1\n", "# a comment\n", True),
        ("H100:1", "H100", True),
        ("//qwen3/", "/qwen3", True),
        ("code: ./src/", "code: src", True),
        ("price_per_hour: 2", "price_per_hour: 2.0", True),
        ("lr: 1.0e-5", "lr: 1e-5", False),
        ("nodes: 2,", "nodes: 3,", False),
        ("version: 2", "version: 3", False),
        ("prevent_destroy: true", "prevent_destroy: false", False),
        ("file:///mirror", "file:///mirrors", False),
        ("from: env, name: HF_TOKEN", "from: env, name: HF", False),
    ],
)
def test_the_digest_is_over_values(project: Path, before: str, after: str, same: bool) -> None:
    """What means the same has the same digest, and what does not has another."""
    first = desired(project, FULL).manifest_digest
    assert before in FULL
    second = desired(project, FULL.replace(before, after)).manifest_digest
    assert (first == second) == same


def test_the_digest_does_not_depend_on_the_place(tmp_path: Path) -> None:
    """A named project is the same wherever it lies, in one file or several."""
    first = tmp_path / "a"
    second = tmp_path / "b"
    for directory in (first, second):
        (directory / "src").mkdir(parents=True)
    whole = desired(first, FULL)
    head, _, jobs = FULL.partition("jobs:\n")
    (second / "jobs.trainctl.yaml").write_text("jobs:\n" + jobs)
    assert desired(second, head).manifest_digest == whole.manifest_digest


def test_attributes_are_plain_json(project: Path) -> None:
    """No float remembers its spelling any more: what comes back from JSON is of the same types."""
    text = FULL.replace("price_per_hour: 2", "price_per_hour: 2.50")
    for resource in desired(project, text).resources.values():
        again = json.loads(json.dumps(resource.attributes))
        assert again == resource.attributes
        assert _types(again) == _types(resource.attributes)


def _types(value: object) -> object:
    if isinstance(value, dict):
        return {key: _types(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_types(item) for item in value]
    return type(value)


def test_provider_settings_lose_their_spelling(project: Path) -> None:
    """Also those that no schema was there to check."""
    wish = desired(project, "clusters: {lab: {provider: ssh, ratio: 1.50}}")
    assert type(attributes(wish, "cluster.lab")["ratio"]) is float


def test_without_a_cluster_there_is_local(project: Path) -> None:
    """With its provider's defaults."""
    wish = desired(project, "jobs: {a: {runtime: {start_commands: [x]}}}")
    assert attributes(wish, "cluster.local") == {
        "provider": "local",
        "nodes": 1,
        "gpus": 0,
        "cache": None,
        "price_per_hour": None,
    }
    assert attributes(wish, "job.a")["cluster"] == "local"


def test_empty_sections_are_as_good_as_none(project: Path) -> None:
    """The defaults are the same."""
    job = f"jobs: {{a: {{{JOB}}}}}\n"
    empty = "".join(
        f"{section}: {{}}\n"
        for section in ("projects", "clusters", "weights", "caches", "vars", "secrets")
    )
    assert desired(project, job + empty).resources == desired(project, job).resources


def test_one_of_projects_is_the_jobs(project: Path) -> None:
    """And its cache's, and what expressions call the project."""
    text = f"projects: {{p: {{}}}}\njobs: {{a: {{{CACHED}, labels: {{x: '${{{{ project.name }}}}'}}}}}}"
    wish = desired(project, text)
    assert attributes(wish, "job.a")["labels"] == {"x": "p"}
    assert attributes(wish, "cache.p-local")["project"] == "p"


def test_a_cache_enabled_job_gets_a_cache(project: Path) -> None:
    """One for all jobs of a project on a cluster."""
    job = "{runtime: {start_commands: [x], cache_config: {enabled: true}}}"
    wish = desired(project, f"jobs: {{a: {job}, b: {job}}}")
    assert attributes(wish, "cache.my-project-local")["size"] is None
    assert [str(one) for one in wish.resources if one.kind == "cache"] == ["cache.my-project-local"]


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (
            f"clusters: {{a: {{provider: local}}, b: {{provider: local}}}}\njobs: {{j: {{{JOB}}}}}",
            "cluster is missing",
        ),
        (f"projects: {{a: {{}}, b: {{}}}}\njobs: {{j: {{{JOB}}}}}", "project is missing"),
        (
            f"jobs: {{j: {{weights: ['hf://a/x', 'hf://b/x'], {JOB}}}}}",
            "weights.j-0 and weights.j-1 have the same mount location weights/x",
        ),
        (
            (
                "weights: {a: {source: 'hf://a/x', mount_location: /app/m}, "
                "b: {source: 'hf://a/y', mount_location: /app/m/sub}}\n"
                f"jobs: {{j: {{weights: [b, a], {JOB}}}}}"
            ),
            "weights.b at /app/m/sub is inside weights.a at /app/m",
        ),
        (
            (
                "jobs: {j: {weights: [{source: 'hf://a/x', mount_location: /ck/m}], runtime: {start_commands: [x],"
                " checkpointing_config: {enabled: true, checkpoint_path: /ck}}}}"
            ),
            "weights.j-0 at /ck/m is inside the checkpoint directory at /ck",
        ),
        (
            f"weights: {{j-0: 'hf://a/b'}}\njobs: {{j: {{weights: ['hf://c/d'], {JOB}}}}}",
            "the address weights.j-0 of this source is already declared",
        ),
        (
            f"weights: {{a: 'hf://a/b'}}\njobs: {{j: {{weights: [a, a], {JOB}}}}}",
            "weights.a is listed twice",
        ),
        (
            "caches: {x: {}, y: {}}",
            "cache.x is already the cache of my-project on local",
        ),
        (
            (
                "projects: {a-b: {}, a: {}}\nclusters: {c: {provider: local}, b-c: {provider: local}}\n"
                f"jobs: {{j: {{project: a-b, cluster: c, {CACHED}}}, k: {{project: a, cluster: b-c, {CACHED}}}}}"
            ),
            "the address cache.a-b-c of the cache of a on b-c is already used",
        ),
        (f"jobs: {{{'j' * 127}: {{weights: ['hf://c/d'], {JOB}}}}}", "is too long"),
    ],
)
def test_what_can_not_be(project: Path, text: str, summary: str) -> None:
    """Each is one error, with an address."""
    found = problems(project, text)
    assert [summary in one.summary for one in found] == [True] or (
        len(found) == 2 and "listed twice" in summary
    )
    assert found[0].address


def test_neighbours_are_not_nested(project: Path) -> None:
    """``/app/m`` and ``/app/m2`` lie side by side."""
    text = (
        "weights: {a: {source: 'hf://a/x', mount_location: /app/m}, "
        "b: {source: 'hf://a/y', mount_location: /app/m2}}\n"
        f"jobs: {{j: {{weights: [b, a], {JOB}}}}}"
    )
    assert problems(project, text) == []


@pytest.mark.parametrize(
    ("name", "project"),
    [
        ("my project", "my-project"),
        ("...x", "x"),
        ("é", "project"),
        ("a/b".replace("/", "_"), "a_b"),
    ],
)
def test_a_directory_names_a_project(tmp_path: Path, name: str, project: str) -> None:
    """Whatever it is called."""
    assert directory_name(tmp_path / name) == project


def test_a_strange_accelerator_is_asked_about(project: Path) -> None:
    """What counts is what hosts report, so it is a warning."""
    wish = desired(project, f"jobs: {{j: {{compute: {{accelerator: 'h100:8'}}, {JOB}}}}}")
    assert ["'H100'" in one.summary for one in wish.warnings] == [True]


@pytest.mark.parametrize("count", [40, pytest.param(2_000, marks=pytest.mark.integration)])
def test_jobs_of_several_files_are_read(tmp_path: Path, count: int) -> None:
    """Four files of many jobs with a source in place each: all of them are there."""
    for part in range(4):
        jobs = "".join(
            f"  j{n}: {{weights: [hf://a/b], runtime: {{start_commands: ['x ${{{{ job.name }}}}']}}}}\n"
            for n in range(part, count, 4)
        )
        (tmp_path / f"p{part}.trainctl.yaml").write_text("jobs:\n" + jobs)
    wish = build(read(tmp_path), provider_schema=schema_of)
    assert len(wish.resources) == 2 * count + 2


@pytest.mark.parametrize(
    ("weights", "vary"),
    [
        ("weights: {w: 's3://bkt/${{ var.x }}'}", True),
        ("weights: {w: {source: 's3://bkt/y', allow_patterns: ['${{ var.x }}']}}", True),
        ("jobs: {j: {weights: ['s3://bkt/${{ var.x }}'], runtime: {start_commands: [x]}}}", True),
        ("jobs: {j: {weights: [{source: 's3://bkt/${{ var.x }}'}], runtime: {start_commands: [x]}}}", True),
        ("weights: {w: {source: 's3://bkt/y', mount_location: '/${{ var.x }}'}}", False),
        ("jobs: {j: {weights: ['s3://bkt/y'], runtime: {start_commands: ['echo ${{ var.x }}']}}}", False),
    ],
)  # fmt: skip
def test_sources_vary_with_expressions(tmp_path: Path, weights: str, vary: bool) -> None:
    """Where those say which weights are meant."""
    assert desired(tmp_path, f"vars: {{x: z}}\n{weights}\n").sources_vary is vary
