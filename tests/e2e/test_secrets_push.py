"""``secrets push``: a value goes from standard input or the environment to where the manifest says that it is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import boto3
import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.servers.buckets import moto

OLD, NEW = "Kd4mP9sL1yB6-old", "Kd4mP9sL1yB6-new"
MANIFEST = """\
secrets:
  corp: {from: keyring, version: 3}
  cloud: {from: aws-secrets-manager, name: prod/cloud}
  plain: {from: env}
jobs:
  j: {runtime: {start_commands: [ls], environment_variables: {A: {secret: corp}, B: {secret: cloud}}}}
"""


@pytest.fixture
def work(fresh: ProjectHarness) -> ProjectHarness:
    """A project, and a keyring in a file of its user's."""
    fresh.variables["PYTHON_KEYRING_BACKEND"] = "keyrings.alt.file.PlaintextKeyring"
    fresh.write({"trainctl.yaml": MANIFEST})
    return fresh


@pytest.fixture
def aws(work: ProjectHarness) -> Iterator[None]:
    """A stand-in for AWS on loopback."""
    with moto() as server:
        work.variables |= {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "not-a-real-key",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield


def push(work: ProjectHarness, name: str, value: str, *flags: str, code: int = 0) -> str:
    """What is said when a value comes on standard input."""
    argv = [sys.executable, "-m", "trainctl", "secrets", "push", name, *flags]
    done = subprocess.run(
        argv, cwd=work.directory, env=work.environment, input=value, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    output = done.stdout + done.stderr
    assert OLD not in output
    assert NEW not in output
    return output


def readable(work: ProjectHarness) -> dict[str, bool]:
    secrets = work.json("secrets", "check", code=None)["secrets"]
    return {secret["name"]: secret["readable"] for secret in secrets}


def test_a_value_goes_to_the_keyring(work: ProjectHarness) -> None:
    """New ones are stored, the same one is left, another is replaced only with --auto-approve where nobody can be asked."""
    assert readable(work)["corp"] is False
    output = push(work, "corp", f"{OLD}\n")
    assert "Stored secret 'corp' in the keyring" in output
    assert "secrets.corp.version: 4" in output
    assert readable(work)["corp"] is True
    assert "Secret 'corp' already has this value" in push(work, "corp", OLD)
    refused = push(work, "corp", NEW, code=64)
    assert "already has a different value, and standard input is not a terminal" in refused
    push(work, "corp", NEW, "--auto-approve")
    assert "already" in push(work, "corp", NEW)


@pytest.mark.usefixtures("aws")
def test_a_value_goes_to_aws(work: ProjectHarness) -> None:
    """From the environment; the versions that AWS gave are told."""
    work.variables["VALUE"] = OLD
    first = push(work, "cloud", "", "--from-env", "VALUE").split()
    work.variables["VALUE"] = NEW
    again = push(work, "cloud", "", "--from-env", "VALUE", "--auto-approve").split()
    assert again[again.index("replacing") + 1] == first[first.index("version") + 1]
    assert readable(work)["cloud"] is True
    client = boto3.client(
        "secretsmanager",
        endpoint_url=work.variables["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="AKIAEXAMPLE",
        aws_secret_access_key="not-a-real-key",
    )
    assert client.get_secret_value(SecretId="prod/cloud")["SecretString"] == NEW


@pytest.mark.parametrize(
    ("name", "value", "flags", "code", "says"),
    [
        ("plain", OLD, (), 64, "is read from env, where trainctl can't store it"),
        ("crop", OLD, (), 64, "Did you mean 'corp'?"),
        ("corp", "short", (), 1, "has fewer than 8 characters"),
    ],
)
def test_what_can_not_be_stored_is_told(
    work: ProjectHarness, name: str, value: str, flags: tuple[str, ...], code: int, says: str
) -> None:
    """And nothing is."""
    assert says in push(work, name, value, *flags, code=code)
    assert readable(work)["corp"] is False
