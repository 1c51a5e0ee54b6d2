"""Weights of buckets, from a manifest to a job that reads them; on this machine, and on a host that is handed links."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshd
from tests.support.network.ssh_recorder import ssh_recorder
from tests.support.node_program.nodes import python38
from tests.support.projects.project import ProjectHarness
from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, moto, rclone
from tests.support.servers.clouds import ACCOUNT, azure
from tests.support.servers.google_xml import google_xml
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in, sample
from trainctl.objects.bucket_client import Bucket as Store
from trainctl.objects.credentials import AwsKeys
from trainctl.objects.location import parse_bucket_location

CHUNK = 16 * 2**20
MODEL = noise(CHUNK + 300_000)
CONFIG = b'{"hidden_size": 8}\n'
MANIFEST = """\
project: {name: demo}
CLUSTERS
secrets: {bucket: {from: env, name: OPENS_BUCKET}}
weights:
  model:
    source: "SOURCE"
    auth_secret_name: bucket
MORE
jobs:
  sft:
    weights: [model]
    runtime: {start_commands: ["cd $TRAINCTL_WEIGHTS_MODEL && sha256sum model.bin deep/config.json && find . -type f | wc -l"]}
"""


@dataclass
class Cloud:
    """A platform: what a manifest writes, what the environment says, and how objects are put."""

    source: str
    variables: dict[str, str]
    put: Callable[[str, bytes], object]
    host: str

    @property
    def secrets(self) -> list[str]:
        """What must be shown nowhere."""
        return [self.variables["OPENS_BUCKET"], SECRET]


def _s3(bucket: BucketServer, source: str) -> Cloud:
    store = Store(
        parse_bucket_location("s3://models", bucket.endpoint, {}),
        AwsKeys(KEY_ID, SECRET),
        environ={},
    )
    variables = {
        "AWS_ENDPOINT_URL": bucket.endpoint,
        "OPENS_BUCKET": json.dumps(bucket.credential),
    }
    return Cloud(source, variables, store.put, bucket.endpoint)


@contextmanager
def s3(work: Path) -> Iterator[Cloud]:
    with moto() as bucket:
        yield _s3(bucket, "s3://models/llm")


@contextmanager
def s3_without_conditions(work: Path) -> Iterator[Cloud]:
    with rclone(work / "rclone") as bucket:
        yield _s3(bucket, "s3://models/llm")


@contextmanager
def r2(work: Path) -> Iterator[Cloud]:
    with moto() as bucket:
        yield _s3(bucket, "r2://0123456789abcdef.models/llm")


@contextmanager
def gs(work: Path) -> Iterator[Cloud]:
    with google_xml() as server:
        variables = {"STORAGE_EMULATOR_HOST": server.url, "OPENS_BUCKET": server.document}
        place = parse_bucket_location("gs://models", None, variables)
        yield Cloud("gs://models/llm", variables, Store(place, environ={}).put, server.url)


@contextmanager
def blobs(work: Path) -> Iterator[Cloud]:
    with azure(work) as server:
        variables = {
            "AZURE_STORAGE_ENDPOINT": server.endpoint,
            "OPENS_BUCKET": server.connection_string,
        }
        yield Cloud(
            f"azure://{ACCOUNT}/closed/llm", variables, server.bucket("closed").put, server.endpoint
        )


Opened = Callable[[Path], AbstractContextManager[Cloud]]
EVERY: list[Opened] = [s3, s3_without_conditions, r2, gs, blobs]


@contextmanager
def filled(opened: Opened, work: Path) -> Iterator[Cloud]:
    """A platform with a model under ``llm/``, and what does not belong to it beside."""
    with opened(work) as cloud:
        cloud.put("llm/model.bin", MODEL)
        cloud.put("llm/deep/config.json", CONFIG)
        cloud.put("llm-other/model.bin", b"other")
        yield cloud


def wants(project: ProjectHarness, cloud: Cloud, clusters: str = "", more: str = "") -> None:
    text = MANIFEST.replace("SOURCE", cloud.source).replace("MORE\n", more)
    project.write({"trainctl.yaml": text.replace("CLUSTERS\n", clusters)})
    project.variables |= cloud.variables


def expected() -> list[str]:
    return [
        f"{hashlib.sha256(MODEL).hexdigest()}  model.bin",
        f"{hashlib.sha256(CONFIG).hexdigest()}  deep/config.json",
        "2",
    ]


@pytest.mark.parametrize("opened", sample(EVERY, fixed=0, rotating=1), ids=lambda one: one.__name__)
def test_a_job_reads_what_a_bucket_has(
    fresh: ProjectHarness, tmp_path: Path, opened: Opened
) -> None:
    """Planned by metadata, locked, mirrored once, read by the job; the next plan does nothing; the secret is in no file."""
    with filled(opened, tmp_path) as cloud:
        wants(fresh, cloud)
        (row,) = fresh.json("plan")["weights"]
        fresh.run("apply", "--auto-approve", "--wait")
        logs = fresh.run("logs", "sft").stdout.splitlines()
        again = fresh.run("plan", "--detailed-exitcode")

    (locked,) = json.loads((fresh.directory / "trainctl.lock").read_text())["sources"]
    assert (row["files"], row["bytes"]) == (2, len(MODEL) + len(CONFIG))
    assert (row["bytes_mirrored"], row["bytes_upstream"]) == (0, row["bytes"])
    assert logs == expected()
    assert "No changes" in again.stdout
    assert (locked["source"], locked["revision"]) == (cloud.source, row["revision"])
    files = [path for path in fresh.directory.parent.rglob("*") if path.is_file()]
    held = [
        one for one in files if any(word.encode() in one.read_bytes() for word in cloud.secrets)
    ]
    assert [one for one in held if "rclone" not in str(one)] == []


@one_day_in(4)
@pytest.mark.parametrize("opened", sample(EVERY, fixed=0, rotating=1), ids=lambda one: one.__name__)
def test_a_prefix_may_hold_spaces(fresh: ProjectHarness, tmp_path: Path, opened: Opened) -> None:
    """Keys of objects may: such a directory is read, is mounted under its name, and changes nothing when it is planned again."""
    with filled(opened, tmp_path) as cloud:
        cloud.put("llm/My Data/run 1/the model.bin", b"spaced\n")
        spaced = replace(cloud, source=f"{cloud.source}/My Data/run 1")
        wants(fresh, spaced)
        text = (fresh.directory / "trainctl.yaml").read_text()
        command = """start_commands: ['cat "$TRAINCTL_WEIGHTS_MODEL"/*.bin']"""
        fresh.write({"trainctl.yaml": re.sub(r"start_commands: \[.*\]", command, text)})
        fresh.run("apply", "--auto-approve", "--wait")
        logs = fresh.run("logs", "sft").stdout
        again = fresh.run("plan", "--detailed-exitcode")

    assert logs == "spaced\n"
    assert "No changes" in again.stdout


@one_day_in(5)
@pytest.mark.parametrize("opened", sample(EVERY, fixed=0, rotating=1), ids=lambda one: one.__name__)
def test_what_is_locked_is_what_is_used(
    fresh: ProjectHarness, tmp_path: Path, opened: Opened
) -> None:
    """An object of the same size was replaced: the mirror's locked version is used and the plan says so; upgrade fetches that file
    alone; where the mirror lacks what is locked, the plan is an error."""
    with filled(opened, tmp_path) as cloud:
        wants(fresh, cloud)
        fresh.run("apply", "--auto-approve", "--target", "weights.model")
        before = (fresh.directory / "trainctl.lock").read_text()
        cloud.put("llm/deep/config.json", CONFIG.replace(b"8", b"9"))

        kept = fresh.json("plan")
        fresh.run("apply", "--auto-approve", "--wait")
        logs = fresh.run("logs", "sft").stdout.splitlines()
        moved = fresh.json("plan", "--upgrade")
        fresh.clear()
        fresh.write({"trainctl.lock": before})
        lost = fresh.run("plan", code=1).stderr
        refused = fresh.run("apply", "--auto-approve", code=1).stderr
        fresh.run("apply", "--auto-approve", "--upgrade", "--target", "weights.model")
        quiet = fresh.json("plan")

    assert [one["code"] for one in kept["diagnostics"]] == ["upstream-changed"]
    assert "changed: deep/config.json" in kept["diagnostics"][0]["detail"]
    assert kept["weights"][0]["bytes_upstream"] == 0
    assert logs == expected()
    assert moved["weights"][0]["bytes_upstream"] == len(CONFIG)
    assert (
        f"the version of {cloud.source} pinned in trainctl.lock is no longer available upstream"
        in lost
    )
    assert "plan --upgrade" in lost
    assert "no longer available upstream" in refused
    assert quiet["diagnostics"] == []


@one_day_in(7)
def test_a_plan_that_is_refused_locks_nothing(fresh: ProjectHarness, tmp_path: Path) -> None:
    """What nobody has must bind nobody: not a first version, nor the one of an upgrade, after which the old one is used as it was."""
    lock = fresh.directory / "trainctl.lock"
    with filled(s3_without_conditions, tmp_path) as cloud:
        wants(fresh, cloud)
        fresh.run("plan", "--out", "first")
        cloud.put("llm/deep/config.json", b"{}")
        refused = [fresh.run("apply", "first", code=None).stderr]
        unlocked = lock.exists()
        fresh.run("apply", "--auto-approve", "--target", "weights.model")
        before = lock.read_text()
        cloud.put("llm/deep/config.json", b"[]")
        fresh.run("plan", "--upgrade", "--out", "second")
        cloud.put("llm/deep/config.json", b"0")
        refused.append(fresh.run("apply", "second", code=None).stderr)
        kept = fresh.json("plan")

    assert ["stale-plan" in one for one in refused] == [True, True]
    assert not unlocked
    assert lock.read_text() == before
    assert [one["code"] for one in kept["diagnostics"]] == ["upstream-changed"]
    assert kept["weights"][0]["bytes_upstream"] == 0


def test_a_secret_goes_to_no_server_that_only_the_manifest_names(
    fresh: ProjectHarness, tmp_path: Path
) -> None:
    """With an endpoint of the manifest's own nothing is asked, and the exit code says that it is forbidden."""
    with filled(s3, tmp_path) as cloud:
        del cloud.variables["AWS_ENDPOINT_URL"]
        wants(fresh, cloud, more=f'    endpoint_url: "{cloud.host}"\n')

        told = fresh.run("plan", code=13).stderr

    assert "secret 'bucket' is not sent to 127.0.0.1" in told
    assert "untrusted-host" in told


TWO_SERVERS = """\
secrets: {bucket: {from: env, name: OPENS_BUCKET}}
weights:
  one: {source: "s3://models/llm", endpoint_url: "ONE", auth_secret_name: bucket, mount_location: one}
  two: {source: "s3://models/llm", endpoint_url: "TWO", auth_secret_name: bucket, mount_location: two}
jobs:
  sft:
    weights: [one, two]
    runtime: {start_commands: [cat one/model.bin two/model.bin]}
"""


@one_day_in(7)
def test_one_uri_at_two_servers_is_two_sources(fresh: ProjectHarness) -> None:
    """Each is locked, mirrored and read as what its own server has, an unchanged manifest changes nothing, and what is
    damaged is fetched again from whoever had it."""
    with moto() as one, moto() as two:
        text = TWO_SERVERS.replace("ONE", one.endpoint).replace("TWO", two.endpoint)
        fresh.write({"trainctl.yaml": text})
        fresh.trust('secret = "bucket"\nhosts = ["127.0.0.1"]')
        for server, content in ((one, b"first\n"), (two, b"other\n")):
            cloud = _s3(server, "s3://models/llm")
            cloud.put("llm/model.bin", content)
        fresh.variables |= {"OPENS_BUCKET": cloud.variables["OPENS_BUCKET"]}
        fresh.run("apply", "--auto-approve", "--wait")
        logs = fresh.run("logs", "sft").stdout.splitlines()
        again = fresh.run("plan", "--detailed-exitcode")
        for pack in fresh.mirror.glob("blobs/sha256/*/*"):
            pack.write_bytes(b"wrong\n")
        repaired = fresh.run("mirror", "verify", "--repair", code=1).stdout
        fresh.run("apply", "--auto-approve")
        whole = fresh.run("mirror", "verify").stdout

    rows = json.loads((fresh.directory / "trainctl.lock").read_text())["sources"]
    assert [row["endpoint_url"] for row in rows] == sorted([one.endpoint, two.endpoint])
    assert logs == ["first", "other"]
    assert "No changes" in again.stdout
    assert ": 2 removed." in repaired
    assert "no problems found" in whole


@one_day_in(4)
def test_the_usual_credentials_open_a_bucket(fresh: ProjectHarness, tmp_path: Path) -> None:
    """What the environment has for AWS opens a source without ``auth``, also where the manifest repeats which server the environment
    names; it goes to no endpoint that only the manifest names, and that is said (13)."""
    with filled(s3_without_conditions, tmp_path) as cloud:
        wants(fresh, cloud)
        text = (fresh.directory / "trainctl.yaml").read_text()
        plain = text.replace("    auth_secret_name: bucket\n", "")
        fresh.write({"trainctl.yaml": plain})
        fresh.variables |= {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
        (row,) = fresh.json("plan")["weights"]
        source = f'"{cloud.source}"\n'
        fresh.write(
            {"trainctl.yaml": plain.replace(source, f'{source}    endpoint_url: "{cloud.host}/"\n')}
        )
        (repeated,) = fresh.json("plan")["weights"]
        del fresh.variables["AWS_ENDPOINT_URL"]
        told = fresh.run("plan", code=13).stderr
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del fresh.variables[name]
        nothing = fresh.run("plan", code=1).stderr

    assert (row["files"], repeated["files"]) == (2, 2)
    assert "the credential of AWS_ACCESS_KEY_ID is not sent to http://127.0.0.1" in told
    assert "AWS_ENDPOINT_URL_S3" in told
    assert "no credential was sent" in nothing


@one_day_in(7)
@pytest.mark.parametrize(
    "auth",
    [
        "AWS_OIDC, aws_oidc_role_arn: THIS, aws_oidc_region: eu-west-1",
        "AWS_ASSUME_ROLE, aws_assume_role_arn: THIS, aws_assume_role_region: eu-west-1",
    ],
)
def test_a_role_opens_a_bucket(fresh: ProjectHarness, tmp_path: Path, auth: str) -> None:
    """By an identity token or the operator's own key; what the session has of secret is in no file."""
    with filled(s3, tmp_path) as cloud:
        wants(fresh, cloud)
        text = (fresh.directory / "trainctl.yaml").read_text()
        auth = auth.replace("THIS", '"arn:aws:iam::123456789012:role/reader"')
        named = text.replace("auth_secret_name: bucket", f"auth: {{auth_method: {auth}}}")
        fresh.write({"trainctl.yaml": named})
        (tmp_path / "token").write_text("header.claims.signature")
        fresh.variables |= {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token")}
        if "OIDC" not in auth:
            keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
            fresh.variables |= keys

        fresh.run("apply", "--auto-approve", "--target", "weights.model")
        again = fresh.json("plan")["weights"][0]

    assert again["bytes_upstream"] == 0
    files = [path for path in fresh.directory.parent.rglob("*") if path.is_file()]
    assert [one for one in files if b"aws_session_token" in one.read_bytes()] == []


@one_day_in(7)
@pytest.mark.parametrize(
    "opened", sample([s3, r2, gs, blobs], fixed=0, rotating=1), ids=lambda one: one.__name__
)
def test_a_host_fetches_from_the_bucket_by_links(
    fresh: ProjectHarness, tmp_path: Path, opened: Opened
) -> None:
    """The mirror on a host gets signed links: nothing goes through this machine, and the credential is in nothing that came there."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    (tmp_path / "gpu-0").mkdir()
    heard = ssh_recorder(tmp_path / "gpu-0")
    with (
        filled(opened, tmp_path) as cloud,
        sshd(tmp_path / "gpu-0", user, f"ForceCommand {heard}", address="127.0.0.2") as host,
    ):
        user.known_hosts.write_text(host.known)
        fresh.variables |= user.environment
        wants(fresh, cloud, f"clusters: {{lab: {{provider: ssh, hosts: {_hosts(host)}}}}}\n")
        plan = fresh.json("plan")
        fresh.run("apply", "--auto-approve", "--wait")
        logs = fresh.run("logs", "sft").stdout.splitlines()

    assert plan["weights"][0]["bytes_through_client"] == 0
    assert logs == expected()
    assert not fresh.mirror.exists()
    came = (tmp_path / "gpu-0" / "heard").read_bytes()
    assert cloud.source.encode() in came
    assert [word for word in cloud.secrets if word.encode() in came] == []


def _hosts(host: Sshd) -> str:
    oldest = {"python": found} if (found := python38()) else {}
    return json.dumps([{**host.settings, **oldest}])
