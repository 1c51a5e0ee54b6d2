"""Pull requests of hostile forks, planned with --untrusted: nothing leaves, nothing runs, nothing of the runner is shown.

One process plans them all, in a network where every address is a recorder's. An audit hook after that of the program
notes what gets past it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_hostile_manifest import ROOT, VARIABLES, canary, files_with_credentials, network
from tests.support.cases import cases
from tests.support.servers.certificate_authority import authority

pytestmark = pytest.mark.integration
__all__ = ["network"]

PLANNER = """
import contextlib, io, json, os, sys, time
from pathlib import Path
from trainctl.cli.main import main
from trainctl.operations import confinement
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


FORKS: dict[str, dict[str, Any]] = {
    case.id or "": case.values[0] for case in cases("hostile_manifest/forks")
}
LARGE = {"DEEP": "[" * 5000, "HUGE": "1" + "0" * 400, "MANY": ",".join(map(str, range(3000)))}


def manifest_of(fork: dict[str, Any]) -> str:
    """The text of its sections, with a job that uses them."""
    sections = {key: fork[key] for key in {*fork} - {"code", "says", "files", "links", "text"}}
    job: dict[str, Any] = {"runtime": {"start_commands": ["ls"]}}
    job |= {"weights": ["m"]} if "weights" in sections else {}
    job |= {"cluster": "c"} if "clusters" in sections else {}
    text: str = fork.get("text") or yaml.safe_dump({"jobs": {"j": job}, **sections})
    for name, large in LARGE.items():
        text = text.replace(name, large)
    return text


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
        for path, text in {"trainctl.yaml": manifest_of(fork), **fork.get("files", {})}.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text.replace("RAN", str(ran)))
            (work / path).chmod(0o755)
        for path, target in fork.get("links", {}).items():
            (work / path).symlink_to(target)
    trusted = str(authority().certificates)
    environ = {
        **{name: canary(name) for name in (*VARIABLES, "TRAINCTL_VAR_secret")},
        "HOME": str(home), "PATH": "/usr/bin:/bin", "SSL_CERT_FILE": trusted, "AWS_CA_BUNDLE": trusted,
        "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "AWS_ENDPOINT_URL_S3": "http://203.0.113.9:9000", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    inside = ["ip", "netns", "exec", Path(namespace).name]
    argv = [*inside, sys.executable, "-c", PLANNER, str(forks), f"{home}/"]
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)

    wrong = {}
    for name, fork in FORKS.items():
        result = results[name.replace("/", "_")]
        code, says, printed = fork.get("code", 0), fork.get("says", ""), result["printed"]
        plan = forks / name.replace("/", "_") / "plan.json"
        written = plan.read_text() if plan.exists() else ""
        problems = [
            f"exit code {result['code']}" if result["code"] != code else "",
            f"does not say {says!r}" if says not in printed else "",
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
