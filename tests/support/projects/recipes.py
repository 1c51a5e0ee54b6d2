"""Runs the jobs of examples/ci as GitHub Actions and GitLab CI do: conditions, variables, steps as bash scripts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.projects.program import ROOT
from tests.support.projects.project import ProjectHarness
from tests.support.servers.reviews import ReviewStub

_NAME = re.compile(r"\$\{?(\w+)\}?")


def recipe(kind: str) -> dict[str, Any]:
    text = (ROOT / "examples" / "ci" / f"{kind}.yml").read_text()
    loaded: dict[Any, Any] = yaml.safe_load(text)
    return {("on" if name is True else name): value for name, value in loaded.items()}


class Runner:
    """A CI system for one repository; each job has a checkout of its own."""

    def __init__(self, project: ProjectHarness, stub: ReviewStub) -> None:
        self.project, self.stub = project, stub
        self.logs: list[str] = []
        self.secrets: dict[str, str] = {}
        self._top = project.directory.parent
        self._programs = self._top / "programs"
        self._programs.mkdir()
        self._program("trainctl", f'exec "{sys.executable}" -m trainctl "$@"')
        for installer in ("pip", "pipx"):
            self._program(
                installer, f'[ "$*" = \'install trainctl[aws]\' ] && touch "{self._top}/installed"'
            )

    def run(self, event: str, commit: str, code: int = 0) -> str:
        """Run all jobs of an event on a commit; at least one. Return their output."""
        place = self._top / f"job-{len(self.logs)}"
        git(self._top, "clone", "-q", str(self.project.directory), str(place))
        git(place, "checkout", "-q", commit)
        path = f"{self._programs}:{os.environ['PATH']}"
        own = {"CI_PROJECT_DIR": str(place), "PATH": path, "PYTHONPATH": str(ROOT)}
        variables = {**self.project.environment, **self.variables(event, commit), **own}
        blocks = list(self._blocks(event, variables))
        assert blocks, f"no job for {event}"
        artifact = self._top / "fork.bin"
        if artifact.exists():
            (place / "fork-plan").mkdir()
            shutil.copy(artifact, place / "fork-plan")
        log = ""
        status = 0
        for script, extra in blocks:
            done = subprocess.run(
                ["bash", "-e", "-c", script], cwd=place, env={**variables, **extra}, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=120,
            )  # fmt: skip
            log, status = log + done.stdout, done.returncode
            if status:
                break
        if (place / "fork.bin").exists():
            shutil.copy(place / "fork.bin", artifact)
        self.logs.append(log)
        assert status == code, f"{event} ended with {status}, not {code}:\n{log}"
        assert (self._top / "installed").exists()
        return log

    def variables(self, event: str, commit: str) -> dict[str, str]:
        """What the system sets for a job."""
        event_file = self._top / "event.json"
        event_file.write_text(json.dumps(self.stub.event(event)))
        own = {"AWS_ID_TOKEN": "header.claims.signature"} if self.stub.kind == "gitlab" else {}
        return {**self.secrets, **own, **self.stub.environment(event, commit, str(event_file))}

    def _blocks(
        self, event: str, variables: Mapping[str, str]
    ) -> Iterator[tuple[str, dict[str, str]]]:
        if self.stub.kind == "gitlab":
            yield from _gitlab_blocks(variables)
            return
        context = {"event_name": event, "event": self.stub.event(event), "repository": "acme/train"}
        context |= {"token": self.stub.token, "ref": "refs/heads/main"}
        jobs = [*recipe("github")["jobs"].values(), *recipe("github-forks")["jobs"].values()]
        for job in jobs:
            if not _github_value(job["if"], context):
                continue
            for step in job["steps"]:
                if "run" in step and _github_value(step.get("if", "'always'"), context):
                    env = step.get("env", {}).items()
                    yield step["run"], {key: _interpolated(text, context) for key, text in env}

    def _program(self, name: str, line: str) -> None:
        path = self._programs / name
        path.write_text(f"#!/bin/bash\n{line}\n")
        path.chmod(0o755)


def _gitlab_blocks(variables: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    document = recipe("gitlab")
    for job in document.values():
        rules = job["rules"] if "extends" in job else ()
        if not any(_gitlab_rule(rule["if"], variables) for rule in rules):
            continue
        base = document[job["extends"]]
        declared = {**base["variables"], **job.get("variables", {})}
        own = {
            name: _NAME.sub(lambda match: variables.get(match[1], ""), text)
            for name, text in declared.items()
        }
        yield "\n".join([*base["before_script"], *job["script"]]), own


def _gitlab_rule(rule: str, variables: Mapping[str, str]) -> bool:
    text = _NAME.sub(lambda match: repr(variables.get(match[1], "")), rule)
    return bool(eval(text.replace("&&", "and").replace("||", "or"), {"__builtins__": {}}))


def _github_value(expression: str, context: Mapping[str, Any]) -> Any:
    def value(match: re.Match[str]) -> str:
        result: Any = context
        for name in match[1].split("."):
            result = (result or {}).get(name)
        return repr(result)

    text = re.sub(r"\bgithub\.([\w.]+)", value, expression)
    return eval(text.replace("&&", "and").replace("||", "or"), {"__builtins__": {}})


def _interpolated(text: str, context: Mapping[str, Any]) -> str:
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: str(_github_value(match[1], context)), text)


def git(directory: Path, *arguments: str) -> str:
    """Run git as a user with a name."""
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
