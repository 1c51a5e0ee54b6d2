"""91 MB of real weights, from two Hubs to a job that trains on them: olah, which nobody here wrote, and the tests' own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.hub import Hub, serve
from tests.support.servers.olah import serve_git
from tests.support.storage.minilm import minilm_files
from tests.support.tiers import one_day_in
from trainctl.base.listing import CHUNK_BYTES

pytestmark = one_day_in(7)

HEAD = '''\
"""Tells words from numbers by their embeddings: logistic regression, on the standard library alone."""
import array, json, math, operator, os, pathlib, struct, sys

weights = pathlib.Path(os.environ["TRAINCTL_WEIGHTS_ENCODER"])
assert weights == pathlib.Path("/app/models/minilm")
with (weights / "model.safetensors").open("rb") as stream:
    (length,) = struct.unpack("<Q", stream.read(8))
    tensor = json.loads(stream.read(length))["embeddings.word_embeddings.weight"]
    (rows, width), start = tensor["shape"], 8 + length + tensor["data_offsets"][0]
    assert (tensor["dtype"], sys.byteorder) == ("F32", "little")

    def row(number):
        stream.seek(start + number * width * 4)
        return array.array("f", stream.read(width * 4))

    vocabulary = (weights / "vocab.txt").read_text(encoding="utf-8").split("\\n")[:rows]
    numbers = [n for n, token in enumerate(vocabulary) if token.isdecimal() and token.isascii()][:100]
    words = [n for n, token in enumerate(vocabulary) if token.isalpha() and len(token) > 4][:100]
    examples = [(row(n), 1.0) for n in numbers] + [(row(n), 0.0) for n in words]

head, bias, rate = [0.0] * width, 0.0, float(sys.argv[1])
for epoch in range(1, 4):
    loss = 0.0
    for x, y in examples:
        p = 1 / (1 + math.exp(-sum(map(operator.mul, head, x)) - bias))
        loss -= math.log(p if y else 1 - p)
        step = rate * (y - p)
        head, bias = [h + step * value for h, value in zip(head, x)], bias + step
    print(f"epoch {epoch} loss {loss / len(examples):.4f}", flush=True)
    place = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"]) / f"checkpoint-{epoch}"
    place.mkdir(parents=True)
    (place / "head.f32").write_bytes(array.array("f", [*head, bias]).tobytes())
try:
    (weights / "model.safetensors").open("r+b")
except OSError as error:
    print("read-only:", error.strerror)
'''

JOB = """
  {name}:
    code: ./src
    weights: [encoder]
    runtime:
      start_commands: ["python3 head.py {rate}"]
      checkpointing_config: {{enabled: true}}
"""

MANIFEST = """\
project: {name: heads}
weights:
  encoder: {source: "hf://acme/minilm", mount_location: /app/models/minilm}
jobs:
""" + JOB.format(name="first", rate=0.5)


@dataclass
class Upstream:
    """A Hub that serves the weights. ``bodies`` are the files whose bytes it was asked for since it was last looked at."""

    url: str
    bodies: Callable[[], list[str]]
    hub: Hub | None = None


@dataclass
class Story:
    """What was seen on the way, step by step; every test looks at a part of it."""

    work: ProjectHarness
    upstream: Upstream
    files: dict[str, Path]
    plan: Any = None
    fetched: list[str] = field(default_factory=list)
    second_plan: Any = None
    second_fetched: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())

    def lines(self, job: str) -> list[str]:
        return self.work.run("logs", job).stdout.splitlines()


def served_by_olah(stack: ExitStack, work: Path, files: Path) -> Upstream:
    url = stack.enter_context(serve_git(work, "acme/minilm", files))
    seen = 0

    def bodies() -> list[str]:
        nonlocal seen
        text = (work / "olah.log").read_text()
        new, seen = text[seen:], len(text)
        return [
            line.split("/resolve/")[1].split()[0].partition("/")[2]
            for line in new.splitlines()
            if "/resolve/" in line
        ]

    return Upstream(url, bodies)


def served_by_hub(stack: ExitStack, work: Path, files: Path) -> Upstream:
    hub = stack.enter_context(serve())
    hub.add("acme/minilm", dict(model_files(files)))

    def bodies() -> list[str]:
        found = [
            one.path.split("/resolve/")[1].partition("/")[2]
            for one in hub.seen
            if "/resolve/" in one.path
        ]
        hub.seen.clear()
        return found

    return Upstream(hub.url, bodies, hub)


def model_files(directory: Path) -> dict[str, Path]:
    found = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*"))}
    return {
        name: path for name, path in found.items() if path.is_file() and not name.startswith(".git")
    }


@pytest.fixture(scope="module", params=[served_by_olah, served_by_hub])
def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    """One job on the weights, then a second one."""
    directory = minilm_files()
    with ExitStack() as stack:
        upstream = request.param(stack, tmp_path_factory.mktemp("upstream"), directory)
        work = stack.enter_context(project(tmp_path_factory.mktemp("real")))
        work.variables["HF_ENDPOINT"] = upstream.url
        work.write({"trainctl.yaml": MANIFEST, "src/head.py": HEAD})
        told = Story(work, upstream, model_files(directory))
        upstream.bodies()
        told.plan = work.json("plan")
        assert upstream.bodies() == []
        work.run("apply", "--auto-approve", "--wait")
        told.fetched = upstream.bodies()
        work.write({"trainctl.yaml": MANIFEST + JOB.format(name="second", rate=0.1)})
        told.second_plan = work.json("plan")
        work.run("apply", "--auto-approve", "--wait")
        told.second_fetched = upstream.bodies()
        yield told


@pytest.fixture
def hub(story: Story) -> Hub:
    """The own hub, for what olah can't do."""
    if story.upstream.hub is None:
        pytest.skip("only the tests' own hub can be changed while it serves")
    return story.upstream.hub


def test_the_plan_knows_files_bytes_and_commit_without_a_download(story: Story) -> None:
    """Metadata alone gives the number of files, their bytes, the 40-digit commit, and that all must be fetched."""
    (row,) = story.plan["weights"]
    (delivery,) = story.plan["deliveries"]

    assert (row["files"], row["bytes"]) == (len(story.files), story.bytes)
    assert (row["bytes_mirrored"], row["bytes_upstream"]) == (0, story.bytes)
    assert len(row["revision"]) == 40
    assert set(row["revision"]) <= set("0123456789abcdef")
    assert delivery["bytes_by_tier"] == {
        "node": 0,
        "cluster": 0,
        "mirror": 0,
        "upstream": story.bytes,
    }


def test_a_job_learns_from_the_mounted_weights(story: Story) -> None:
    """The job reads real tensors at the mount location, its loss falls, and it could not have changed them."""
    *epochs, mount = story.lines("job.first")
    losses = [float(line.split()[-1]) for line in epochs]

    assert len(losses) == 3
    assert losses[-1] < losses[0] < 0.7
    assert mount == "read-only: Read-only file system"
    assert not Path("/app/models/minilm").exists()


def test_the_checkpoints_are_the_trained_heads(story: Story, tmp_path: Path) -> None:
    """Every checkpoint is listed, complete, and can be downloaded: 384 weights and a bias."""
    found = story.work.json("checkpoints", "list", "job.first")["checkpoints"]
    place = story.work.run(
        "checkpoints", "download", "job.first", "--output-dir", str(tmp_path / "out")
    ).stdout.strip()

    assert sorted(one["name"] for one in found if one["complete"]) == [
        "checkpoint-1",
        "checkpoint-2",
        "checkpoint-3",
    ]
    assert len(next(Path(place).rglob("head.f32")).read_bytes()) == 385 * 4


def test_every_file_is_fetched_once(story: Story) -> None:
    """Upstream is asked for each file's bytes exactly once, whatever it can do; for large ones in parts."""
    asked = Counter(story.fetched)
    assert set(asked) == set(story.files)
    for name, path in story.files.items():
        size = path.stat().st_size
        assert asked[name] <= max(1, ceil(size / CHUNK_BYTES)), name


def test_a_second_job_moves_no_byte(story: Story) -> None:
    """The plan finds everything in the node's cache, upstream is asked for no body, and the job trains on it."""
    rows = {one["job"]: one["bytes_by_tier"] for one in story.second_plan["deliveries"]}

    assert rows == {"job.second": {"node": story.bytes, "cluster": 0, "mirror": 0, "upstream": 0}}
    assert story.second_fetched == []
    assert story.lines("job.second")[0].startswith("epoch 1 loss")


def test_the_lock_file_holds_the_commit(story: Story) -> None:
    """trainctl.lock names the commit that was planned, with its files and bytes."""
    document = json.loads((story.work.directory / "trainctl.lock").read_text())
    (entry,) = document["sources"]

    assert entry["source"] == "hf://acme/minilm"
    assert entry["revision"] == story.plan["weights"][0]["revision"]
    assert (entry["files"], entry["bytes"]) == (len(story.files), story.bytes)


def test_the_mirror_names_what_it_has(story: Story) -> None:
    """mirror list shows the source once, with its commit, files and bytes."""
    (row,) = story.work.json("mirror", "list")["sources"]

    assert (row["source"], row["revision"]) == (
        "hf://acme/minilm",
        story.plan["weights"][0]["revision"],
    )
    assert (row["files"], row["bytes"], row["projects"]) == (
        len(story.files),
        story.bytes,
        ["heads"],
    )


def test_a_branch_that_moves_moves_nothing_until_it_is_asked_for(story: Story, hub: Hub) -> None:
    """The locked commit stays planned; --upgrade shows the new one, and applying it fetches the changed file alone."""
    old = story.plan["weights"][0]["revision"]
    new = hub.add(
        "acme/minilm", {**story.files, "config.json": b'{"hidden_size": 384, "moved": true}'}
    )
    assert new != old

    locked = story.work.json("plan")
    assert locked["weights"][0]["revision"] == old
    assert {tuple(one["change"]["actions"]) for one in locked["resource_changes"]} == {("no-op",)}

    upgraded = story.work.json("plan", "--upgrade")
    changes = {one["address"]: one for one in upgraded["resource_changes"]}
    assert upgraded["weights"][0]["revision"] == new
    assert changes["weights.encoder"]["change"]["before"]["revision"] == old
    assert changes["weights.encoder"]["change"]["after"]["revision"] == new
    assert changes["weights.encoder"]["change"]["actions"] == ["update"]
    assert changes["job.first"]["change"]["actions"] == ["no-op"]
    assert changes["job.first"]["action_reason"] == "weights_changed"

    story.upstream.bodies()
    story.work.run("apply", "--auto-approve", "--wait", "--upgrade")
    assert story.upstream.bodies() == ["config.json"]
    assert (
        json.loads((story.work.directory / "trainctl.lock").read_text())["sources"][0]["revision"]
        == new
    )
    assert story.work.actions() == {}
