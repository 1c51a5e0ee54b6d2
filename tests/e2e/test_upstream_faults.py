"""What upstream, disks and names can do wrong, as the user meets it: the words, the exit code, and that nothing half-done stays."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.hub import Fault, Hub, http_date, serve
from tests.support.mirrors import assert_sound
from tests.support.project import Project
from tests.support.weights_data import noise

ROOT = Path(__file__).resolve().parents[2]
HASTY = ("-m", "tests.support.hasty")
CHUNK = 16 * 2**20
BIG = noise(2 * CHUNK + 54321)
SMALL = {"model.safetensors": noise(300_000), "config.json": b'{"hidden_size": 8}'}
ALWAYS = 999

WEIGHTS = """\
project: {name: demo}
weights:
  model:
    source: "SOURCE"
    mount_location: /app/models/tiny
"""
JOB = """\
jobs:
  sft:
    weights: [model]
    runtime: {start_commands: ["cat /app/models/tiny/config.json"]}
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with one small repository."""
    with serve() as running:
        running.add("acme/model", SMALL)
        yield running


@pytest.fixture
def work(fresh: Project, hub: Hub) -> Project:
    """A project that wants the repository's weights, and no job yet."""
    fresh.variables |= {
        "HF_ENDPOINT": hub.url,
        "PYTHONPATH": str(ROOT),
        "WAITS": str(waits_of(fresh)),
    }
    wants(fresh, "hf://acme/model")
    return fresh


def wants(work: Project, source: str, rest: str = "") -> None:
    work.write({"trainctl.yaml": WEIGHTS.replace("SOURCE", source) + rest})


def waits_of(work: Project) -> Path:
    return work.directory.parent / "waits"


def waited(work: Project) -> list[float]:
    return [float(line) for line in waits_of(work).read_text().split()]


def apply(work: Project, code: int, *more: str) -> CompletedProcess[str]:
    return work.run("apply", "--auto-approve", *more, code=code, program=HASTY)


def failures(done: CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the summary of ``apply --format json`` says has failed."""
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["type"] == "summary"
    assert last["data"]["exit_code"] == done.returncode
    found: list[dict[str, Any]] = last["data"]["failed"]
    return found


def assert_nothing_half_done(work: Project) -> None:
    """Every blob is what its name says, no listing names the source, no node has a tree or a run of it."""
    if work.mirror.exists():
        assert_sound(work.mirror)
    assert list(work.mirror.glob("listings/*")) == []
    assert list(work.nodes.glob("*/cache/trees/*")) == []
    assert list(work.nodes.glob("*/cache/seals/*")) == []
    assert list(work.nodes.glob("*/runs/*/started")) == []


def assert_recovers(work: Project, files: dict[str, bytes] = SMALL) -> None:
    """With the fault gone one apply does the rest, and the mirror holds exactly the files."""
    apply(work, 0)
    (listing,) = work.mirror.glob("listings/*.json")
    found = {one["path"]: one["sha256"] for one in json.loads(listing.read_bytes())["files"]}
    assert found == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert_sound(work.mirror)


@dataclass(frozen=True)
class Broken:
    """A fault while bytes are fetched: what the error must say beyond the source and the file, and what to do."""

    name: str
    fault: Fault
    says: str
    advises: str


def at(
    kind: str,
    status: int = 500,
    headers: dict[str, str] | None = None,
    file: str = "model.safetensors",
) -> Fault:
    return Fault(kind, f"/{file}", times=ALWAYS, at=1000, status=status, headers=headers or {})


TRANSFERS = [
    Broken("cut", at("cut"), "ended 299000 bytes early", "Gave up after 6 tries. Run the same command again"),
    Broken("silent", at("silent"), "the server fell silent", "Gave up after 6 tries. Run the same command again"),
    Broken("corrupted", at("flip"), "other content than upstream announced", "Nothing of it was kept"),
    Broken("corrupted git file", Fault("flip", "/config.json", ALWAYS, 3), "other content", "git blob id should be"),
    Broken("longer", at("longer"), "300001 bytes where 300000 were announced", "Plan again"),
    Broken("404", at("status", 404, {"X-Error-Code": "EntryNotFound"}), "does not have it", "ignore_patterns"),
    Broken("401", at("status", 401), "wants a credential (401)", "auth: {auth_method: CUSTOM_SECRET"),
    Broken("403", at("status", 403), "wants a credential (403)", "auth: {auth_method: CUSTOM_SECRET"),
    Broken("429 forever", at("status", 429), "asks for fewer requests (429)", "Gave up after 6 tries"),
    Broken("429 for an hour", at("status", 429, {"Retry-After": "3600"}), "(429)", "It asks to wait 1h"),
    Broken("500", at("status", 500), "can't answer now (500)", "Gave up after 6 tries"),
    Broken("503", at("status", 503), "can't answer now (503)", "Gave up after 6 tries"),
    Broken("418", at("status", 418), "answered 418", "may not be the server"),
]  # fmt: skip


@pytest.mark.parametrize("broken", TRANSFERS, ids=lambda one: one.name)
def test_a_body_that_can_not_be_had(work: Project, hub: Hub, broken: Broken) -> None:
    """The step fails with the address, the file and what to do; nothing half-done stays; then it recovers."""
    hub.faults = [broken.fault]
    text = apply(work, 12)

    file = broken.fault.path.removeprefix("/")
    assert f"error: weights.model: hf://acme/model: {file}" in text.stderr
    assert broken.says in text.stderr
    assert broken.advises in text.stderr
    assert "Traceback" not in text.stderr
    assert text.stdout.endswith("Apply incomplete. 2 added, 0 changed, 0 destroyed, 1 failed.\n")
    assert_nothing_half_done(work)
    hub.faults.clear()
    assert_recovers(work)


def test_programs_get_the_same_failure(work: Project, hub: Hub) -> None:
    """Of apply --format json, the event and the summary have the address, the file and what to do; 12, then 1 as nothing is left to do."""
    hub.faults = [at("flip")]
    (first,) = failures(apply(work, 12, "--format", "json"))
    again = apply(work, 1, "--format", "json")
    events = [json.loads(line) for line in again.stdout.splitlines()]
    (event,) = [one for one in events if one["type"] == "step_failed"]

    assert [first] == failures(again)
    assert first["address"] == event["address"] == "weights.model"
    assert first["summary"] == event["message"]
    assert first["summary"].startswith(
        "hf://acme/model: model.safetensors arrived with other content"
    )
    assert "Nothing of it was kept" in first["detail"]


def status_of(path: str, status: int, code: str = "") -> Fault:
    return Fault(
        "status", path, ALWAYS, status=status, headers={"X-Error-Code": code} if code else {}
    )


REVISION = "/revision/main"
RESOLVING = [
    ("hf://acme/absent", None, "hf://acme/absent: HOST does not have it (404)", "Check its name. If it is private: declare"),
    ("hf://acme/model@v9", None, "HOST has no such revision (404)", "Write an existing branch, tag or commit after @."),
    ("hf://acme/model", status_of(REVISION, 401), "HOST wants a credential (401)", "Check its name. Declare a secret"),
    ("hf://acme/model", status_of(REVISION, 403), "HOST wants a credential (403)", "Check its name. Declare a secret"),
    ("hf://acme/model", status_of(REVISION, 500), "HOST can't answer now (500)", "Gave up after 6 tries."),
    ("hf://acme/model", status_of(REVISION, 429), "HOST asks for fewer requests (429)", "Gave up after 6 tries."),
    ("hf://acme/model", Fault("wait", REVISION, ALWAYS, 20), "HOST did not answer within", "Gave up after 6 tries."),
]  # fmt: skip


@pytest.mark.parametrize(("source", "fault", "says", "advises"), RESOLVING)
def test_a_source_that_can_not_be_resolved(
    work: Project, hub: Hub, source: str, fault: Fault | None, says: str, advises: str
) -> None:
    """The plan fails with place, address, source and advice; apply begins nothing; without the fault it plans."""
    wants(work, source)
    hub.faults = [fault] if fault else []
    planned = work.run("plan", "--format", "json", code=1, program=HASTY)
    applied = apply(work, 1)
    (problem,) = json.loads(planned.stdout)["diagnostics"]
    host = hub.url.partition("//")[2]

    assert problem["severity"] == "error"
    assert (problem["address"], problem["file"], problem["line"]) == (
        "weights.model",
        "trainctl.yaml",
        3,
    )
    assert problem["summary"].startswith(source)
    assert says.replace("HOST", host) in problem["summary"]
    assert advises in problem["detail"]
    assert f"error: weights.model: {problem['summary']}" in applied.stderr
    assert not (work.directory / ".trainctl").exists()
    assert not (work.directory / "trainctl.lock").exists()
    assert not work.mirror.exists()
    hub.faults.clear()
    wants(work, "hf://acme/model")
    work.run("plan")


def test_a_gated_repository_asks_for_the_licence_and_a_token(work: Project, hub: Hub) -> None:
    """Without a token, with a wrong one and with the right one: three different answers, found while planning."""
    hub.add("acme/model", SMALL, gated=True)
    none = work.run("plan", code=1)
    work.variables["HF_TOKEN"] = "hf_" + "w" * 30
    wrong = work.run("plan", code=1)
    work.variables["HF_TOKEN"] = hub.token
    work.run("plan")

    assert "the repository is gated and no token was sent" in none.stderr
    assert "Accept its licence on its Hugging Face page" in none.stderr
    assert "the token's account has no access" in wrong.stderr
    assert "The token came from HF_TOKEN." in wrong.stderr
    assert_recovers(work)


@pytest.mark.parametrize("path", [REVISION, "/model.safetensors"])
@pytest.mark.parametrize("after", ["7", http_date(7)])
def test_retry_after_is_honoured(work: Project, hub: Hub, path: str, after: str) -> None:
    """A 429 that says how long to wait is waited out, about that long, and then the apply succeeds by itself."""
    hub.faults = [Fault("status", path, status=429, headers={"Retry-After": after})]
    assert_recovers(work)

    (seconds,) = waited(work)
    assert 0 < seconds < 9
    assert after != "7" or seconds >= 7


def test_a_transfer_goes_on_from_the_last_good_chunk(work: Project, hub: Hub) -> None:
    """What was verified before a cut is asked for no second time by the next apply."""
    files = {"model.safetensors": BIG}
    hub.add("acme/model", files)
    hub.faults = [Fault("cut", "/model.safetensors", ALWAYS, at=CHUNK + 7_000_000)]
    apply(work, 12)
    assert_nothing_half_done(work)
    hub.faults.clear()
    hub.seen.clear()
    assert_recovers(work, files)

    assert [one.headers.get("Range") for one in hub.asked("/model.safetensors")] == [
        f"bytes={CHUNK}-"
    ]


def test_a_job_is_not_begun_when_its_weights_fail(work: Project, hub: Hub) -> None:
    """What depends on the failure is skipped and named; what does not is done; the next apply does the rest."""
    wants(work, "hf://acme/model", JOB)
    hub.faults = [at("flip")]
    done = apply(work, 12)

    assert "job.sft: skipped, as weights.model failed" in done.stdout
    assert "Apply incomplete. 2 added, 0 changed, 0 destroyed, 1 failed, 1 skipped." in done.stdout
    assert_nothing_half_done(work)
    hub.faults.clear()
    work.run("apply", "--auto-approve", "--wait")
    assert work.run("logs", "sft").stdout == '{"hidden_size": 8}\n'


HOSTILE = [
    ("../../evil", "'../../evil' leaves its directory"),
    ("a/../../evil", "'a/../../evil' leaves its directory"),
    ("/etc/evil", "'/etc/evil' is an absolute path"),
    ("two\nlines", r"'two\nlines' holds a control character"),
    ("\x1b[31mred", r"'\x1b[31mred' holds a control character"),
    ("back\\slash", r"'back\\slash' holds a control character, a backslash"),
    ("a//b", "'a//b' has an empty component"),
]


@pytest.mark.parametrize(("name", "says"), HOSTILE)
def test_a_hostile_file_name_is_refused(work: Project, hub: Hub, name: str, says: str) -> None:
    """The name is shown escaped, with why and what to do, and apply begins nothing."""
    hub.add("acme/model", {**SMALL, name: b"evil"})
    done = apply(work, 1)
    (problem,) = [line for line in done.stderr.splitlines() if "error:" in line]

    assert f"error: weights.model: hf://acme/model: the file name {says}" in problem
    assert "Leave the file out with ignore_patterns, or have it renamed upstream." in done.stderr
    assert "\x1b" not in done.stderr
    assert not work.mirror.exists()
    assert not (work.directory.parent / "evil").exists()


def test_a_hostile_file_name_can_be_left_out(work: Project, hub: Hub) -> None:
    """What ignore_patterns leaves out can't hurt: everything else of the source is taken."""
    hub.add("acme/model", {**SMALL, "../../evil": b"evil"})
    wants(work, "hf://acme/model", '    ignore_patterns: ["*evil"]\n')
    assert_recovers(work)

    assert not (work.directory.parent / "evil").exists()


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("/", "this is no place for a mount"),
        ("/proc/x", "would hide what the system needs"),
        ("/etc", "would hide what the system needs"),
        ("/app/../etc", "'.' and '..' have no place in a mount location"),
        ("../up", "'.' and '..' have no place in a mount location"),
        ("~/models", "'~' is not expanded here"),
        ("/app/\\u0007", "control characters have no place"),
    ],
)
def test_a_mount_outside_reason_is_refused(
    work: Project, hub: Hub, location: str, says: str
) -> None:
    """validate and apply refuse it with its line and an example of what to write, before upstream is asked anything."""
    text = (
        WEIGHTS.replace("SOURCE", "hf://acme/model").replace("/app/models/tiny", f'"{location}"')
        + JOB
    )
    work.write({"trainctl.yaml": text})
    found = json.loads(work.run("validate", "--format", "json", code=1).stdout)
    done = apply(work, 1)

    (problem,) = found["diagnostics"]
    assert says in problem["summary"]
    assert (problem["line"], problem["address"]) == (3, "weights.model")
    assert "Write for example /app/models/NAME" in problem["detail"]
    assert f"trainctl.yaml:3:{problem['column']}: error:" in done.stderr
    assert says in done.stderr
    assert hub.seen == []


@contextmanager
def small_disk(place: Path, size: str, *options: str) -> Iterator[Path]:
    """A file system of its own at the place; the test is skipped where this user may not mount one."""
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "none", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, *options: str) -> None:
    subprocess.run(["mount", "-o", ",".join(["remount", *options]), str(place)], check=True)


def test_a_mirror_without_room_says_so_before_anything_moves(work: Project, hub: Hub) -> None:
    """The error has the place, what is needed and what is free; no body was asked for; with room it goes on."""
    with small_disk(work.mirror, "20m") as place:
        done = apply(work, 12)
        assert (
            f"error: weights.model: the mirror {place} needs 67.4 MB and its disk has"
            in done.stderr
        )
        assert "Free some space, or name another place in mirror: {url: …}." in done.stderr
        assert not hub.asked("/model.safetensors")
        assert_nothing_half_done(work)
        remount(place, "size=200m")
        assert_recovers(work)


def test_a_read_only_mirror_is_named(work: Project) -> None:
    """A file system that can't be written is named with what to do; writable again, it is used."""
    with small_disk(work.mirror, "200m", "ro") as place:
        done = apply(work, 12)
        assert (
            f"error: weights.model: the mirror {place} lies on a read-only file system"
            in done.stderr
        )
        assert "Mount it writable, or name another place in mirror: {url: …}." in done.stderr
        remount(place, "rw")
        assert_recovers(work)


def test_a_node_without_room_is_found_while_planning(work: Project, hub: Hub) -> None:
    """The plan says how much is free on which node and how much is needed, and can't be applied."""
    hub.add("acme/model", {**SMALL, "model.safetensors": noise(6_000_000)})
    wants(work, "hf://acme/model", JOB)
    with small_disk(work.nodes, "5m"):
        done = apply(work, 1)

    assert (
        "error: job.sft: local/local-0 has 5.2 MB free and needs 6.0 MB of weights" in done.stderr
    )
    assert "Free space there, put the node cache on a larger disk" in done.stderr
    assert not work.mirror.exists()


def test_a_node_whose_disk_fills_up_meanwhile(work: Project, hub: Hub) -> None:
    """Delivery fails with the node, its directory and what to do; no tree is left; with room the same plan goes on."""
    hub.add("acme/model", {**SMALL, "model.safetensors": noise(6_000_000)})
    wants(work, "hf://acme/model", JOB)
    with small_disk(work.nodes, "12m") as place:
        work.run("plan", "--out", "plan.bin")
        (place / "filler").write_bytes(bytes(8_000_000))
        done = work.run("apply", "plan.bin", code=12)
        status = work.json("status", "job.sft")
        assert "error: job.sft: " in done.stderr
        assert str(place) in done.stderr
        assert "ree some space" in done.stderr
        assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
        assert list(work.nodes.glob("*/cache/trees/*")) == []
        assert list(work.nodes.glob("*/runs/*/started")) == []
        (place / "filler").unlink()
        work.run("apply", "--auto-approve", "--wait")
        assert work.run("logs", "sft").stdout == '{"hidden_size": 8}\n'
        assert work.actions() == {}
