"""What upstream, disks and names can do wrong, as the user meets it: the words, the exit code, and that nothing half-done stays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.projects.project import ProjectHarness, project
from tests.support.projects.weights_project import (
    FAST_TIMEOUTS,
    JOB,
    SMALL,
    apply,
    assert_nothing_half_done,
    assert_recovers,
    connect,
    recorded_waits,
    write_weights_manifest,
)
from tests.support.servers.hub import HttpFault, Hub, http_date, serve
from tests.support.storage.mirrors import assert_sound
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in

CHUNK = 16 * 2**20
BIG = noise(2 * CHUNK + 54321)
ALWAYS = 999


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with one small repository."""
    with serve() as running:
        running.add("acme/model", SMALL)
        yield running


@pytest.fixture
def work(fresh: ProjectHarness, hub: Hub) -> ProjectHarness:
    """A project that wants the repository's weights, and no job yet."""
    connect(fresh, hub)
    write_weights_manifest(fresh, "hf://acme/model")
    return fresh


@dataclass(frozen=True)
class Broken:
    """One repository with a fault: what its error must say, and what it must advise."""

    name: str
    kind: str
    says: str
    advises: str
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    file: str = "model.safetensors"

    @property
    def path(self) -> str:
        """The file that the fault is about; no other repository has one of this name."""
        return f"{self.name}-{self.file}"

    @property
    def files(self) -> dict[str, bytes]:
        seed = sum(self.name.encode())
        return {f"{self.name}-{name}": noise(len(data), seed) for name, data in SMALL.items()}

    @property
    def fault(self) -> HttpFault:
        return HttpFault(self.kind, self.path, ALWAYS, 10, self.status, self.headers)


SILENCE = "3"
"""Seconds that a server may say nothing, where one does: more than a busy machine makes of it."""
GIVEN_UP = "Gave up after 6 attempts. Run the same command again later"
NO_TOKEN = "auth: {auth_method: CUSTOM_SECRET, auth_secret_name: NAME}"
TRANSFERS = [
    Broken("cut", "cut", "ended 299990 bytes early", GIVEN_UP),
    Broken("silent", "silent", "the response body stalled", GIVEN_UP),
    Broken("damaged", "flip", "differs from the digest announced upstream", "The file was not stored"),
    Broken("damaged-git", "flip", "differs from the digest", "Expected git blob id", file="config.json"),
    Broken("longer", "longer", "300001 bytes, expected 300000", "Plan again"),
    Broken("e404", "status", "doesn't have it at", "ignore_patterns", 404, {"X-Error-Code": "EntryNotFound"}),
    Broken("e401", "status", "requires authentication (401)", NO_TOKEN, 401),
    Broken("e403", "status", "requires authentication (403)", NO_TOKEN, 403),
    Broken("e429", "status", "rate limited by", GIVEN_UP, 429),
    Broken("hour", "status", "(429)", "The server asks to wait 1h. Run the same", 429, {"Retry-After": "3600"}),
    Broken("e500", "status", "is unavailable (500)", GIVEN_UP, 500),
    Broken("e503", "status", "is unavailable (503)", GIVEN_UP, 503),
    Broken("e418", "status", "answered 418", "are those of the right server", 418),
]  # fmt: skip


@dataclass
class Tried:
    """One apply of many broken repositories, as text and then as JSON, and one with the faults gone."""

    text: CompletedProcess[str]
    json: CompletedProcess[str]
    recovered: CompletedProcess[str]
    listings: dict[str, Any]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    """Every broken repository at once: each fails by itself and stops no other."""
    with serve() as hub, project(tmp_path_factory.mktemp("tried")) as work:
        connect(work, hub)
        work.variables["SILENCE"] = SILENCE
        for broken in TRANSFERS:
            hub.add(f"acme/{broken.name}", broken.files)
            hub.faults.append(broken.fault)
        sources = {broken.name: f"hf://acme/{broken.name}" for broken in TRANSFERS}
        work.write({"trainctl.yaml": many(sources)})
        text = apply(work, 12)
        assert_nothing_half_done(work)
        again = apply(work, 1, "--format", "json")
        assert_nothing_half_done(work)
        hub.faults.clear()
        recovered = apply(work, 0)
        assert_sound(work.mirror)
        listings = {
            row["source"]: json.loads(
                (work.mirror / "listings" / f"{row['listing']}.json").read_bytes()
            )
            for row in work.json("mirror", "list")["sources"]
        }
        yield Tried(text, again, recovered, listings)


def many(sources: dict[str, str]) -> str:
    """A manifest with these sources, one a line from line 3 on."""
    rows = [f"  {name}: {{source: {json.dumps(source)}}}" for name, source in sources.items()]
    return "\n".join(["project: {name: demo}", "weights:", *rows, ""])


def error_of(done: CompletedProcess[str], name: str) -> str:
    """What the last words on standard error say about one of the weights."""
    *_, last = done.stderr.partition(f"error: weights.{name}: ")
    summary, *detail = last.split("\n")
    return "\n".join([summary, *(line for line in detail[:1] if line.startswith("  "))])


@pytest.mark.parametrize("broken", TRANSFERS, ids=lambda one: one.name)
def test_a_body_that_can_not_be_had_is_explained(tried: Tried, broken: Broken) -> None:
    """Standard error names the address, the source, the file, what happened and what to do."""
    said = error_of(tried.text, broken.name)

    assert said.startswith(f"hf://acme/{broken.name}: {broken.path}")
    assert broken.says in said.splitlines()[0]
    assert broken.advises in said.splitlines()[1]


@pytest.mark.parametrize("broken", TRANSFERS, ids=lambda one: one.name)
def test_programs_get_the_same_failure(tried: Tried, broken: Broken) -> None:
    """The JSON event and the summary say what standard error says to people."""
    events = [json.loads(line) for line in tried.json.stdout.splitlines()]
    address = f"weights.{broken.name}"
    (event,) = [one for one in events if one["type"] == "step_failed" and one["address"] == address]
    (failed,) = [one for one in events[-1]["data"]["failed"] if one["address"] == address]

    assert failed["summary"] == event["message"]
    assert broken.says in failed["summary"]
    assert broken.advises in failed["detail"]


@pytest.mark.parametrize("broken", TRANSFERS, ids=lambda one: one.name)
def test_with_the_fault_gone_the_mirror_is_whole(tried: Tried, broken: Broken) -> None:
    """The next apply brings exactly the files that upstream has."""
    found = {
        one["path"]: one["sha256"] for one in tried.listings[f"hf://acme/{broken.name}"]["files"]
    }

    assert found == {name: hashlib.sha256(data).hexdigest() for name, data in broken.files.items()}


def test_what_failed_is_counted(tried: Tried) -> None:
    """12 where the rest was done, 1 where nothing else was left to do, 0 at last; the counts say it."""
    last = json.loads(tried.json.stdout.splitlines()[-1])

    assert tried.text.stdout.endswith(
        "Apply incomplete. 2 added, 0 changed, 0 destroyed, 13 failed.\n"
    )
    assert (last["type"], last["data"]["exit_code"], len(last["data"]["failed"])) == (
        "summary",
        1,
        13,
    )
    assert tried.recovered.stdout.endswith("Apply complete. 13 added, 0 changed, 0 destroyed.\n")
    assert "Traceback" not in tried.text.stderr + tried.json.stderr


RESOLVING = [
    Broken("absent", "absent", "not found on HOST (404)", "Check the name. If it is private: declare a secret"),
    Broken("tag", "@v9", "revision not found on HOST (404)", "Use an existing branch, tag or commit after @."),
    Broken("e401", "status", "HOST requires authentication (401)", "Check the name. Declare a secret", 401),
    Broken("e403", "status", "HOST requires authentication (403)", "Check the name. Declare a secret", 403),
    Broken("e429", "status", "rate limited by HOST (429)", GIVEN_UP, 429),
    Broken("e500", "status", "HOST is unavailable (500)", GIVEN_UP, 500),
    Broken("silent", "wait", "HOST did not respond within", "Gave up after 2 attempts."),
]  # fmt: skip


def test_sources_that_can_not_be_resolved(work: ProjectHarness, hub: Hub) -> None:
    """Each is an error with its place, address, source and advice, all in one plan; apply begins nothing; then it plans."""
    sources = {}
    for broken in RESOLVING:
        revision = broken.kind if broken.kind.startswith("@") else ""
        sources[broken.name] = f"hf://acme/{broken.name}{revision}"
        if broken.kind != "absent":
            hub.add(f"acme/{broken.name}", broken.files)
        hub.faults.append(
            HttpFault(broken.kind, f"/acme/{broken.name}/revision/main", ALWAYS, 20, broken.status)
        )
    work.write({"trainctl.yaml": many(sources)})
    work.variables["SILENCE"] = SILENCE
    planned = json.loads(work.run("plan", "--format", "json", code=1, program=FAST_TIMEOUTS).stdout)
    hub.closing.set()
    applied = apply(work, 1)

    host = hub.url.partition("//")[2]
    found = {one["address"]: one for one in planned["diagnostics"]}
    assert (planned["errored"], planned["applyable"], len(found)) == (True, False, len(RESOLVING))
    for line, broken in enumerate(RESOLVING, 3):
        problem = found[f"weights.{broken.name}"]
        assert (problem["severity"], problem["file"], problem["line"]) == (
            "error",
            "trainctl.yaml",
            line,
        )
        assert problem["summary"].startswith(
            f"{sources[broken.name]}: {broken.says.replace('HOST', host)}"
        )
        assert broken.advises in problem["detail"]
    assert (
        f"trainctl.yaml:3:{found['weights.absent']['column']}: error: weights.absent: hf://acme/absent: "
        in applied.stderr
    )
    assert not (work.directory / ".trainctl").exists()
    assert not (work.directory / "trainctl.lock").exists()
    assert not work.mirror.exists()
    hub.faults.clear()
    write_weights_manifest(work, "hf://acme/model")
    work.run("plan")


STRANGER = {"X-Error-Code": "RepoNotFound"}
"""What the Hub says, with 401, to who sends no token and asks for a repository that isn't there."""


@one_day_in(5)
@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [(503, {}, "is unavailable (503)"), (401, STRANGER, "requires authentication (401)")],
    ids=["503", "401"],
)
def test_what_is_locked_and_mirrored_needs_no_upstream(
    work: ProjectHarness, hub: Hub, status: int, headers: dict[str, str], says: str
) -> None:
    """While the Hub can't be asked jobs run with what the mirror has, and a warning says so; what it lacks is the error."""
    write_weights_manifest(work, "hf://acme/model", JOB)
    work.run("apply", "--auto-approve", "--wait")
    hub.faults = [HttpFault("status", "", ALWAYS, status=status, headers=headers)]
    ran = work.run("run", "sft", "--auto-approve", "--follow", program=FAST_TIMEOUTS)
    planned = json.loads(work.run("plan", "--format", "json", program=FAST_TIMEOUTS).stdout)
    work.run("reconcile", "--once", program=FAST_TIMEOUTS)
    (listing,) = work.mirror.glob("listings/*.json")
    listing.unlink()
    lost = work.run("plan", code=1, program=FAST_TIMEOUTS)

    assert '{"hidden_size": 8}' in ran.stdout
    (told,) = planned["diagnostics"]
    assert (told["severity"], told["address"]) == ("warning", "weights.model")
    assert says in told["detail"]
    assert "Using the locked version from the mirror." in told["detail"]
    assert says in lost.stderr
    assert "The mirror doesn't contain the locked version." in lost.stderr


@one_day_in(7)
def test_only_what_is_planned_is_asked_for(work: ProjectHarness, hub: Hub) -> None:
    """A source that can't be had stops what needs it and nothing else."""
    write_weights_manifest(work, "hf://acme/model", JOB)
    other = '  alone:\n    runtime: {start_commands: ["echo alone"]}\n'
    work.write({"trainctl.yaml": (work.directory / "trainctl.yaml").read_text() + other})
    hub.faults = [HttpFault("status", "", ALWAYS, status=401)]
    needs_it = [
        work.run("plan", *flags, code=1).stderr
        for flags in ([], ["--target", "job.sft"], ["--target", "weights.model"])
    ]
    hub.seen.clear()
    for flags in (["--target", "job.alone"], ["--exclude", "weights.model"]):
        assert "job.sft" not in work.run("plan", *flags).stdout
    ran = work.run("run", "alone", "--auto-approve", "--follow")

    assert all("requires authentication (401)" in said for said in needs_it)
    assert "alone" in ran.stdout
    assert hub.seen == []


def test_a_gated_repository_asks_for_the_licence_and_a_token(
    work: ProjectHarness, hub: Hub
) -> None:
    """Without a token, with a wrong one and with the right one: three different answers, found while planning."""
    hub.add("acme/model", SMALL, gated=True)
    none = work.run("plan", code=1)
    work.variables["HF_TOKEN"] = "hf_" + "w" * 30
    wrong = work.run("plan", code=1)
    work.variables["HF_TOKEN"] = hub.token
    work.run("plan")

    assert "the repository is gated, and no token was sent" in none.stderr
    assert "Accept the licence on the Hugging Face page" in none.stderr
    assert "the token's account has no access" in wrong.stderr
    assert "The token was read from HF_TOKEN." in wrong.stderr
    assert_recovers(work)


@one_day_in(4)
def test_a_source_of_many_jobs_is_asked_for_once(work: ProjectHarness, hub: Hub) -> None:
    """Each job has its weights, and a plan asks the Hub for the commit and its files once for all."""
    rows = [
        f"  j{n}: {{weights: [hf://acme/model], runtime: {{start_commands: [ls]}}}}"
        for n in range(5)
    ]
    work.write({"trainctl.yaml": "\n".join(["jobs:", *rows, ""])})
    planned = work.run("plan").stdout

    assert planned.count("hf://acme/model") >= 5
    assert ["tree" in one.path for one in hub.seen] == [False, True]


@one_day_in(10)
@pytest.mark.parametrize("path", ["/revision/main", "/model.safetensors"])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(work: ProjectHarness, hub: Hub, path: str, form: str) -> None:
    """A 429 that says how long to wait is waited out, about that long, said so, and then the apply succeeds by itself."""
    after = "7" if form == "seconds" else http_date(9)
    hub.faults = [HttpFault("status", path, status=429, headers={"Retry-After": after})]
    done = apply(work, 0)
    assert_recovers(work)

    (seconds,) = recorded_waits(work)
    assert 7 <= seconds < 9 if form == "seconds" else 0 < seconds < 11
    assert seconds < 2 or "(429); retrying in" in done.stderr


def test_a_transfer_goes_on_from_the_last_good_chunk(work: ProjectHarness, hub: Hub) -> None:
    """What was verified before a cut is asked for no second time by the next apply."""
    files = {"model.safetensors": BIG}
    hub.add("acme/model", files)
    hub.faults = [HttpFault("cut", "/model.safetensors", ALWAYS, at=CHUNK + 7_000_000)]
    apply(work, 12)
    assert_nothing_half_done(work)
    hub.faults.clear()
    hub.seen.clear()
    assert_recovers(work, files)

    assert [one.headers.get("Range") for one in hub.asked("/model.safetensors")] == [
        f"bytes={CHUNK}-"
    ]


@one_day_in(4)
def test_a_job_is_not_begun_when_its_weights_fail(work: ProjectHarness, hub: Hub) -> None:
    """What depends on the failure is skipped and named; what does not is done; the next apply does the rest."""
    write_weights_manifest(work, "hf://acme/model", JOB)
    hub.faults = [HttpFault("flip", "/model.safetensors", ALWAYS, 3)]
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
    ("two\nlines", r"'two\nlines' contains a control character"),
    ("\x1b[31mred", r"'\x1b[31mred' contains a control character"),
    ("back\\slash", r"'back\\slash' contains a control character, a backslash"),
    ("a//b", "'a//b' has an empty component"),
]


@one_day_in(4)
def test_hostile_file_names_are_refused(work: ProjectHarness, hub: Hub) -> None:
    """Each is shown escaped, with why and what to do, and apply begins nothing."""
    for number, (name, _) in enumerate(HOSTILE):
        hub.add(f"acme/r{number}", {**SMALL, name: b"evil"})
    work.write({"trainctl.yaml": many({f"w{n}": f"hf://acme/r{n}" for n in range(len(HOSTILE))})})
    done = apply(work, 1)

    for number, (_, says) in enumerate(HOSTILE):
        assert f"error: weights.w{number}: hf://acme/r{number}: the file name {says}" in done.stderr
    advice = "Exclude the file with ignore_patterns, or have it renamed upstream: "
    assert done.stderr.count(advice) == len(HOSTILE)
    assert "\x1b" not in done.stderr
    assert not work.mirror.exists()
    assert not (work.directory.parent / "evil").exists()


@one_day_in(5)
def test_a_hostile_file_name_can_be_left_out(work: ProjectHarness, hub: Hub) -> None:
    """What ignore_patterns leaves out can't hurt: everything else of the source is taken."""
    hub.add("acme/model", {**SMALL, "../../evil": b"evil"})
    write_weights_manifest(work, "hf://acme/model", '    ignore_patterns: ["*evil"]\n')
    assert_recovers(work)

    assert not (work.directory.parent / "evil").exists()


MOUNTS = [
    ("/", "the root directory is not a valid mount location"),
    ("/proc/x", "a mount on /proc/x would hide system files"),
    ("/etc", "a mount on /etc would hide system files"),
    ("/app/../etc", "'.' and '..' are not allowed in a mount location"),
    ("../up", "'.' and '..' are not allowed in a mount location"),
    ("~/models", "'~' is not expanded in a mount location"),
    ("/app/\x07", "control characters are not allowed in a mount location"),
]


@one_day_in(4)
def test_mounts_outside_reason_are_refused(work: ProjectHarness, hub: Hub) -> None:
    """validate and apply name each with its line and an example of what to write, before upstream is asked anything."""
    rows = [
        f'  w{n}: {{source: "hf://acme/model", mount_location: {json.dumps(location)}}}'
        for n, (location, _) in enumerate(MOUNTS)
    ]
    work.write({"trainctl.yaml": "\n".join(["weights:", *rows, ""])})
    found = json.loads(work.run("validate", "--format", "json", code=1).stdout)["diagnostics"]
    done = apply(work, 1)

    assert len(found) == len(MOUNTS)
    for number, ((_, says), problem) in enumerate(zip(MOUNTS, found, strict=True)):
        assert says in problem["summary"]
        assert (problem["line"], problem["address"]) == (number + 2, f"weights.w{number}")
        assert "Use for example /app/models/NAME" in problem["detail"]
        assert f"trainctl.yaml:{number + 2}:{problem['column']}: error:" in done.stderr
        assert says in done.stderr
    assert hub.seen == []


@one_day_in(5)
def test_nobody_is_said_to_write_a_lock_that_is_only_read(work: ProjectHarness) -> None:
    """A plan says what an apply will write; one that writes nothing says that."""
    planned = work.run("plan").stderr
    kept = work.run("apply", "--lockfile=readonly", "--auto-approve").stderr

    assert "To pin the revision, apply" in " ".join(planned.split())
    assert "To pin the revision, apply" not in kept
    assert "the revision is not recorded" in " ".join(kept.split())
    assert not (work.directory / "trainctl.lock").exists()


@one_day_in(5)
def test_what_is_mirrored_already_is_not_written_into_a_lock_that_is_only_read(
    work: ProjectHarness,
) -> None:
    """Nor does anything else change in it."""
    work.run("apply", "--auto-approve")
    lock = work.directory / "trainctl.lock"
    lock.unlink()

    work.run("apply", "--lockfile=readonly", "--auto-approve")

    assert not lock.exists()


@one_day_in(5)
def test_a_lock_that_is_only_read_is_not_upgraded(work: ProjectHarness) -> None:
    """What would be used is nowhere written down, and the next plan would want to go back."""
    done = work.run("apply", "--upgrade", "--lockfile=readonly", "--auto-approve", code=64)
    assert "--lockfile=readonly can't be used together" in done.stderr
    assert not work.mirror.exists()
