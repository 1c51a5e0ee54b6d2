"""The user's trust file: what it allows, what is refused, and that the schema for editors agrees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tomli
from jsonschema import Draft202012Validator

from tests.support.cases import cases
from trainctl.errors import TrustError
from trainctl.manifest.trust_file import read_trust
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.trust import AllowEntry, HostPattern, PlanPolicy, PolicyWaiver
from trainctl.operations.trust import load_policies
from trainctl_schemas import schema

VALID = """\
[[allow]]
secret = "corp"
hosts = ["models.example.com", "*.lan:9000", "[::1]:8443"]

[[allow]]
secret = "*"
commands = [["pass", "show", "hf"]]
allow_paths_outside_project = true

[[policy]]
name = "ours"
max_hourly_cost = 40
providers = ["ssh"]
regions = ["eu-*"]
sources = ["hf://acme/*"]
"""
BUDGET = """\
[[policy]]
name = "budget"
max_upstream_bytes = "2GiB"
keep_checkpoints = true
"""
WAIVER = """
[[waiver]]
policy = "budget"
until = "2030-01-31"
reason = "final run"
"""


def write(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "trust.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def refusals(path: Path, outside: Path | None = None) -> list[Diagnostic]:
    with pytest.raises(TrustError) as failure:
        read_trust(path, outside=outside)
    return [problem for problem in failure.value.diagnostics if isinstance(problem, Diagnostic)]


def fits_schema(text: str) -> bool:
    return Draft202012Validator(schema("trust")).is_valid(tomli.loads(text))


def test_entries_and_policies_are_read(tmp_path: Path) -> None:
    trust = read_trust(write(tmp_path, VALID))
    hosts = (
        HostPattern("models.example.com"),
        HostPattern("*.lan", 9000),
        HostPattern("::1", 8443),
    )
    assert trust.allowed == (
        AllowEntry("corp", hosts=hosts),
        AllowEntry("*", commands=(("pass", "show", "hf"),), allow_paths_outside_project=True),
    )
    where = f"{tmp_path / 'trust.toml'}: policy.0"
    policy = PlanPolicy(where, "ours", 40.0, ("ssh",), ("eu-*",), ("hf://acme/*",))
    assert trust.policies == (policy,)
    assert fits_schema(VALID)
    empty = read_trust(write(tmp_path, "# nothing\n"))
    assert (empty.allowed, empty.policies) == ((), ())


@pytest.mark.parametrize("texts", cases("trust_file"))
def test_an_invalid_entry_is_refused_with_its_place(tmp_path: Path, texts: list[list[str]]) -> None:
    """A mistyped permission must not look as if it were given."""
    for text, place, summary in texts:
        (refusal,) = refusals(write(tmp_path, text))
        assert str(refusal.where) == f"{tmp_path / 'trust.toml'}: {place}"
        assert summary in refusal.summary
        assert not fits_schema(text)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    text = "[[allow]]\nsecret = 1\nhost = 2\n[[policy]]\nprovider = 3\n"
    assert len(refusals(write(tmp_path, text))) == 3
    (refusal,) = refusals(write(tmp_path, "[[allow]\n"))
    assert (refusal.code, refusal.where and refusal.where.line) == ("syntax", 1)


def test_policies_have_a_file_of_their_own(tmp_path: Path) -> None:
    """Outside of the project, with waivers of its policies and without permissions."""
    path = tmp_path / "policy.toml"
    path.write_text(BUDGET + WAIVER)
    (policy,) = load_policies(path, outside=tmp_path / "project")
    assert policy.waiver == PolicyWaiver("2030-01-31", "final run")
    assert (policy.max_upstream_bytes, policy.keep_checkpoints) == (2 << 30, True)
    assert fits_schema(BUDGET + WAIVER)
    for text, summary in (
        (WAIVER, "inside the directory"),
        ("[[allow]]\nsecret = '*'\ncommands = true\n", "unknown key 'allow'"),
        (WAIVER.replace("budget", "other"), "no policy is named 'other'"),
        (WAIVER.replace("2030-01-31", "soon"), "until: expected a date"),
    ):
        path.write_text(BUDGET + text)
        with pytest.raises(TrustError) as failure:
            load_policies(path, outside=tmp_path if text == WAIVER else None)
        assert summary in str(failure.value.diagnostics)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_other_users_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (refusal,) = refusals(write(tmp_path, VALID, mode))
    assert "other users can write to it" in refusal.summary
    assert "chmod go-w" in refusal.detail


def test_a_file_that_other_users_can_replace_is_refused(tmp_path: Path) -> None:
    """In a sticky directory such as /tmp they can't."""
    directory = tmp_path / "open"
    directory.mkdir()
    path = write(directory, VALID)
    directory.chmod(0o777)
    assert "other users can replace it" in str(refusals(path))
    directory.chmod(0o1777)
    assert read_trust(path).allowed


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's file")
def test_another_users_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, VALID, 0o644)
    os.chown(path, 12345, 12345)
    assert "owned by another user" in str(refusals(path))


def test_a_file_of_the_project_is_refused(tmp_path: Path) -> None:
    """Also behind a symlink."""
    inside = tmp_path / "project" / "sub"
    inside.mkdir(parents=True)
    path = write(inside, VALID)
    link = tmp_path / "trust.toml"
    link.symlink_to(path)
    for name in (link, path):
        result = refusals(name, outside=tmp_path / "project")
        assert "inside the directory of the manifest" in str(result)


@pytest.mark.parametrize("kind", ["directory", "pipe", "gone", "binary"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, kind: str) -> None:
    """Nobody waits for the other end of a pipe."""
    path = tmp_path / "trust.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
        path.chmod(0o600)
    assert refusals(path)
