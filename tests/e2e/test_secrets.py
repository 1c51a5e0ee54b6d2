"""Secrets: the job gets their values, and nobody and nothing else does. Every place that could hold one is searched."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.hub import HttpFault, Hub, serve

ENV = "env-Zq8vN2xW5tR7-value"
FILE = "file-Kd4mP9sL1yB6-value"
AWKWARD = "awk\"ward's\n100% café \\ line-two-Hj3k"
KEY = "Xc7Vb2Nm9Qw4Er6Ty1Ui8Op"
DOCUMENT = json.dumps({"aws_access_key_id": "not-so-secret", "aws_secret_access_key": KEY})
ENV_TOKEN = "hf_" + "EnvTok" * 5
SOURCE_TOKEN = "hf_" + "SrcTok" * 5
PLANTED = {
    "env": ENV,
    "file": FILE,
    "awkward": AWKWARD,
    "awkward, last line": AWKWARD.splitlines()[1],
    "document": DOCUMENT,
    "key in the document": KEY,
    "token of the environment": ENV_TOKEN,
    "token of the source": SOURCE_TOKEN,
}

MANIFEST = """\
project: {name: demo}
vars: {rate: 1}
secrets:
  wandb: {from: env, name: WANDB_API_KEY}
  netrc: {from: file, path: src/netrc.txt}
  awkward: {from: env, name: AWKWARD}
  aws: {from: file, path: aws.json, version: 3}
  source: {from: env, name: SOURCE_TOKEN}
weights:
  gated:
    source: hf://acme/gated
    auth: {auth_method: CUSTOM_SECRET, auth_secret_name: source}
  open: {source: hf://acme/open}
jobs:
  sft:
    code: ./src
    weights: [gated, open]
    runtime:
      start_commands: ["python3 train.py", "echo ${{ var.rate }}"]
      environment_variables:
        WANDB_API_KEY: {secret: wandb}
        NETRC: {secret: netrc}
        AWKWARD: {secret: awkward}
        AWS: {secret: aws}
        PLAIN: nothing
"""

TRAIN = """\
import hashlib, os, pathlib, time

for name in ("WANDB_API_KEY", "NETRC", "AWKWARD", "AWS"):
    print(name, hashlib.sha256(os.environ[name].encode()).hexdigest(), flush=True)
print("leaked", sorted(name for name in os.environ if "TOKEN" in name and not name.startswith("KUBEFLOW_")))
print("echo", os.environ["WANDB_API_KEY"], flush=True)
print("code", sorted(path.name for path in pathlib.Path().iterdir()), flush=True)
time.sleep(0.5)
"""
FILES = {"model.safetensors": b"weights" * 100, "config.json": b"{}"}
OTHERS = {"model.safetensors": b"other weights" * 100, "config.json": b"{}"}
"""As sources share content: what one has brought the other doesn't ask for."""


def spellings(value: str) -> set[bytes]:
    """The value as it would look in a file, in JSON, in a URL, in Python's words and in a header."""
    raw = value.encode()
    return {
        raw,
        json.dumps(value)[1:-1].encode(),
        json.dumps(value, ensure_ascii=False)[1:-1].encode(),
        ascii(value)[1:-1].encode(),
        quote(value, safe="").encode(),
        base64.b64encode(raw),
        raw.hex().encode(),
    }


def found_in(data: bytes) -> list[str]:
    """Which planted values occur in the bytes."""
    return [
        name for name, value in PLANTED.items() if any(form in data for form in spellings(value))
    ]


def found_below(*places: Path) -> dict[str, list[str]]:
    """Of every file below the places, and of every name, which planted values they hold."""
    result = {}
    for place in places:
        for path in [place, *place.rglob("*")] if place.is_dir() else [place]:
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            if held := found_in(os.fsencode(path) + b"\n" + content):
                result[str(path)] = held
    return result


@contextmanager
def watched_processes() -> Iterator[set[bytes]]:
    """Every argument list on this machine while the block runs."""
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(entry.read_bytes())
                except OSError:
                    continue

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


@dataclass
class Story:
    """What every command said, which argument lists there were, and what the job wrote."""

    work: ProjectHarness
    hub: Hub
    outputs: dict[str, str] = field(default_factory=dict)
    arguments: set[bytes] = field(default_factory=set)
    log: Mapping[str, str] = field(default_factory=dict)

    @property
    def top(self) -> Path:
        return self.work.directory.parent

    def run(self, *arguments: str, code: int = 0) -> str:
        done = self.work.run("--log-level", "debug", *arguments, code=code)
        self.outputs[" ".join(arguments)] = done.stdout + done.stderr
        return done.stdout


def plant(work: ProjectHarness, hub: Hub) -> None:
    work.variables |= {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": ENV_TOKEN,
        "SOURCE_TOKEN": SOURCE_TOKEN,
        "WANDB_API_KEY": ENV,
        "AWKWARD": AWKWARD,
    }
    work.write(
        {
            "trainctl.yaml": MANIFEST,
            "src/train.py": TRAIN,
            "src/netrc.txt": FILE + "\n",
            "aws.json": DOCUMENT,
        }
    )
    hub.token = SOURCE_TOKEN
    hub.add("acme/gated", OTHERS, gated=True)
    hub.add("acme/open", {**FILES, "extra.bin": b"more"})


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Every command that shows or keeps something, with secrets planted in every place that takes one."""
    with (
        serve() as hub,
        serve(hub),
        project(tmp_path_factory.mktemp("s")) as work,
    ):
        plant(work, hub)
        story = Story(work, hub)
        story.run("validate")
        story.run("validate", "--format", "json")
        story.run("plan", "--format", "json", "--out", "saved.plan")
        story.run("show", "saved.plan")
        story.run("show", "saved.plan", "--format", "json")
        work.forks = False  # a fork has no argument list of its own
        with watched_processes() as story.arguments:
            story.run("plan")
            story.run("apply", "saved.plan", "--wait")
        work.forks = True
        story.run("apply", "--auto-approve", "--format", "json", "--wait", "--var", "rate=2")
        lines = story.run("logs", "job.sft").splitlines()
        story.log = dict(line.partition(" ")[::2] for line in lines)
        for name in (
            "state list",
            "state pull",
            "show",
            "status",
            "status job.sft",
            "history",
            "mirror list",
        ):
            story.run(*name.split())
            if name not in ("state list", "state pull"):
                story.run(*name.split(), "--format", "json")
        yield story


def test_the_job_receives_every_value(story: Story) -> None:
    """What the job found in its environment has the very digests of what was planted."""
    expected = {"WANDB_API_KEY": ENV, "NETRC": FILE, "AWKWARD": AWKWARD, "AWS": DOCUMENT}

    assert {name: story.log[name] for name in expected} == {
        name: hashlib.sha256(value.encode()).hexdigest() for name, value in expected.items()
    }


def test_the_job_receives_nothing_else(story: Story) -> None:
    """Tokens that only the operator needs, to read sources, don't reach the job."""
    assert story.log["leaked"] == "[]"


def test_no_output_shows_a_value(story: Story) -> None:
    assert len(story.outputs) > 15
    assert {
        name: held for name, text in story.outputs.items() if (held := found_in(text.encode()))
    } == {}


def test_a_value_that_a_job_prints_is_masked_when_shown(story: Story) -> None:
    assert story.log["echo"] == "(redacted)"


def test_nothing_that_is_kept_holds_a_value(story: Story) -> None:
    kept = [*story.top.iterdir(), *story.work.directory.iterdir()]
    ours = {str(story.work.directory / "src" / "netrc.txt"), str(story.work.directory / "aws.json")}
    logs = {str(path) for path in story.work.nodes.glob("*/runs/*/log/*.log")}
    result = found_below(*[path for path in kept if path.name != "project"])

    assert len(logs) == 2
    assert set(result) == ours | logs
    assert {name for log in logs for name in result[log]} == {"env"}
    assert (story.work.directory / ".trainctl").is_dir()
    assert (story.work.directory / "saved.plan").is_file()


def test_no_argument_list_holds_a_value(story: Story) -> None:
    """/proc/*/cmdline was read all the while, and the job's own processes were among what was seen."""
    assert any(b"train.py" in argument for argument in story.arguments)
    assert any(b"apply" in argument for argument in story.arguments)
    assert found_in(b"\n".join(story.arguments)) == []


def test_a_token_goes_to_its_host_and_no_further(story: Story) -> None:
    """Each source's own token is sent to the endpoint; the host that a redirect names gets neither."""
    tokens: dict[tuple[str, str], set[str]] = {}
    for request in story.hub.seen:
        repo = "gated" if "acme/gated" in request.path else "open"
        host = "hub" if request.host in story.hub.url else "elsewhere"
        tokens.setdefault((host, repo), set()).add(request.headers.get("Authorization", "none"))

    assert tokens == {
        ("hub", "gated"): {f"Bearer {SOURCE_TOKEN}"},
        ("hub", "open"): {f"Bearer {ENV_TOKEN}"},
        ("elsewhere", "gated"): {"none"},
        ("elsewhere", "open"): {"none"},
    }


def test_a_secret_file_is_never_code(story: Story) -> None:
    """A file that secrets names is neither in the job's directory nor in the archive on the node."""
    assert story.log["code"] == "['train.py', 'weights']"
    for archive in story.work.nodes.glob("*/code/*.tar"):
        with tarfile.open(archive) as tar:
            assert tar.getnames() == ["train.py"]


@pytest.fixture
def planted(fresh: ProjectHarness) -> Iterator[Story]:
    """The same project, nothing applied."""
    with serve() as hub:
        plant(fresh, hub)
        yield Story(fresh, hub)


def change(work: ProjectHarness, old: str, new: str) -> None:
    text = (work.directory / "trainctl.yaml").read_text()
    assert old in text
    work.write({"trainctl.yaml": text.replace(old, new)})


def nothing_begun(work: ProjectHarness) -> bool:
    return (
        not (work.directory / ".trainctl").exists()
        and not work.mirror.exists()
        and not work.nodes.exists()
    )


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        (
            "WANDB_API_KEY",
            "job.sft: secret 'wandb': environment variable WANDB_API_KEY is not set",
        ),
        (
            "SOURCE_TOKEN",
            "weights.gated: secret 'source': environment variable SOURCE_TOKEN is not set",
        ),
    ],
)
def test_a_missing_secret_is_named_before_anything_is_begun(
    planted: Story, variable: str, says: str
) -> None:
    """Of an apply that lacks one, the error names it, who needs it and what to do; nothing is made or mirrored."""
    del planted.work.variables[variable]
    done = planted.work.run("apply", "--auto-approve", code=1)

    assert f"error: {says}" in done.stderr
    assert f"Set it where trainctl runs: export {variable}=…" in done.stderr
    assert nothing_begun(planted.work)
    assert found_in((done.stdout + done.stderr).encode()) == []


def test_a_declared_value_that_stands_in_the_manifest_is_refused(planted: Story) -> None:
    """Nothing that is kept could hold it as it is, so there is no plan; the value isn't repeated in any form."""
    change(planted.work, "PLAIN: nothing", f"PLAIN: prefix-{ENV}")
    results = [
        planted.work.run("plan", "--out", "saved.plan", code=1),
        planted.work.run("plan", "--format", "json", code=1),
        planted.work.run("apply", "--auto-approve", code=1),
    ]

    assert "error: job.sft: the manifest contains the value of a secret" in results[0].stderr
    assert "Refer to the secret instead: `environment_variables:" in results[0].stderr
    assert all(found_in((result.stdout + result.stderr).encode()) == [] for result in results)
    assert not (planted.work.directory / "saved.plan").exists()
    assert nothing_begun(planted.work)


@pytest.mark.parametrize("status", [302, 401, 500])
def test_an_upstream_that_echoes_the_token_is_not_repeated(planted: Story, status: int) -> None:
    """Whatever an error's headers say, the token is in no message and in nothing that is kept."""
    echo = {
        "X-Error-Message": f"bad token {SOURCE_TOKEN}",
        "X-Error-Code": SOURCE_TOKEN,
        "Location": f"ftp://{SOURCE_TOKEN}@127.0.0.1/?token={SOURCE_TOKEN}",
        "Retry-After": "9999",
    }
    path = "/model.safetensors" if status == 500 else "acme/gated/revision/main"
    planted.hub.faults = [HttpFault("status", path, 999, status=status, headers=echo)]
    result = planted.work.run(
        "--log-level", "debug", "apply", "--auto-approve", code=12 if status == 500 else 1
    )

    assert "error: weights.gated: hf://acme/gated" in result.stderr.replace(
        "trainctl.yaml:10:10: ", ""
    ).replace("\x00", "")
    assert found_in((result.stdout + result.stderr).encode()) == []
    kept = [path for path in planted.top.iterdir() if path.name != "project"]
    assert (
        found_below(
            *kept, *planted.work.directory.glob(".trainctl"), *planted.work.directory.glob("*.lock")
        )
        == {}
    )
