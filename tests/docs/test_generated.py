"""Generated files are what ``python -m docs.generate`` writes; their sources are complete and right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from docs.generate import environment, stale_files
from docs.generate.manifest import examples
from tests.support.projects.program import ROOT
from trainctl import errors
from trainctl.cli import app
from trainctl.cli.arguments import read_arguments, values_of
from trainctl.cli.command_notes import EXIT_CODES, NOTES
from trainctl.cli.commands.plan import CHANGES
from trainctl.desired.build import build
from trainctl.inputs.environment import JOB_VARIABLES
from trainctl.manifest.read import read
from trainctl.plugin_api import discovery


def test_generated_files_are_current() -> None:
    assert stale_files() == []


@pytest.mark.parametrize("section", examples())
def test_examples_of_the_manifest_are_valid(tmp_path: Path, section: str) -> None:
    """Each is a manifest without errors, and is shown on the page."""
    (tmp_path / "src").mkdir()
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "trainctl.yaml").write_text(examples()[section])
    build(
        read(tmp_path),
        provider_schema=lambda name: discovery.load_provider(name).schema(),
        providers=discovery.plugin_names(discovery.PROVIDERS),
    )
    assert f"\n## {section}\n" in (ROOT / "docs" / "reference" / "manifest.md").read_text()


def test_every_command_has_examples_that_can_be_parsed() -> None:
    """The notes name each command, and options in examples exist."""
    assert NOTES.keys() == app.named_commands().keys()
    for name, notes in NOTES.items():
        for example in notes.examples:
            words = shlex.split(example.partition(" > ")[0])
            assert words[: 1 + len(name.split())] == ["trainctl", *name.split()]
            line = read_arguments(words[1:], app.ROOT)
            assert isinstance(line.target, app.CliCommand)
            values_of(line.target.parameters, line.options, line.arguments, line.path)


def test_every_exit_code_is_explained() -> None:
    """The table has the exit code of every error class, success, and the code for changes."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    codes = {item.exit_code for item in classes if issubclass(item, errors.TrainctlError)}
    assert EXIT_CODES.keys() == codes | {0, CHANGES}
    assert all(notes.exit_codes.keys() <= EXIT_CODES.keys() for notes in NOTES.values())


_VARIABLE = re.compile(
    r"""["']((?:BT|TRAINCTL|AWS|AZURE|GOOGLE|GCE|HF|HUGGING_FACE|R2|XDG|ACTIONS)_[A-Z0-9_]+)["']"""
)
_OTHERS = {
    "AWS_ASSUME_ROLE", "AWS_IAM", "AWS_OIDC", "GCP_OIDC", "GOOGLE_REGISTRY",  # methods and kinds
    "TRAINCTL_SECRETS",  # between programs of trainctl
    "TRAINCTL_VAR_", "TRAINCTL_WEIGHTS_",  # the beginning of names
    "ACTIONS_ID_TOKEN_REQUEST_",
}  # fmt: skip


def test_every_variable_is_documented() -> None:
    """Each name of a variable in the code is on the page."""
    documented = {*JOB_VARIABLES, *environment.INSIDE_JOBS}
    for group in environment.GROUPS.values():
        documented |= group.keys()
    used = {
        name
        for folder in ("trainctl", "providers", "state")
        for path in (ROOT / folder).rglob("*.py")
        for name in _VARIABLE.findall(path.read_text(encoding="utf-8"))
    }
    assert used - documented == _OTHERS & used
