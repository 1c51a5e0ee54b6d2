"""The user's trust file: what it may say, what is refused, and that the schema for editors says the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tomli
from jsonschema import Draft202012Validator

from trainctl.errors import TrustError
from trainctl.manifest.trust_file import read_trust
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.trust import AllowEntry, HostPattern, PlanPolicy, PolicyWaiver, Trust
from trainctl.operations.directories import load_policies
from trainctl_schemas import schema

RIGHT = """\
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


def read(tmp_path: Path, text: str) -> Trust:
    path = tmp_path / "trust.toml"
    path.write_text(text)
    path.chmod(0o600)
    return read_trust(path)


def wrong(tmp_path: Path, text: str) -> list[Diagnostic]:
    with pytest.raises(TrustError) as caught:
        read(tmp_path, text)
    return [one for one in caught.value.diagnostics if isinstance(one, Diagnostic)]


def fits_schema(text: str) -> bool:
    return Draft202012Validator(schema("trust")).is_valid(tomli.loads(text))


def test_everything_it_may_say(tmp_path: Path) -> None:
    """Entries and policies become values; a policy knows where it stands."""
    hosts = (
        HostPattern("models.example.com"),
        HostPattern("*.lan", 9000),
        HostPattern("::1", 8443),
    )
    trust = read(tmp_path, RIGHT)
    assert trust.allowed == (
        AllowEntry("corp", hosts=hosts),
        AllowEntry("*", commands=(("pass", "show", "hf"),), allow_paths_outside_project=True),
    )
    where = f"{tmp_path / 'trust.toml'}: policy.0"
    assert trust.policies == (
        PlanPolicy(where, "ours", 40.0, ("ssh",), ("eu-*",), ("hf://acme/*",)),
    )
    assert fits_schema(RIGHT)


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_allows_nothing(tmp_path: Path, text: str) -> None:
    """And is no error."""
    trust = read(tmp_path, text)
    assert (trust.allowed, trust.policies) == ((), ())


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("[[alow]]\nsecret = 'a'\n", "alow", "unknown key 'alow'"),
        ("[allow]\nsecret = 'a'\nhosts = ['b']\n", "allow", "allow must be a list of tables"),
        ("allow = []\n", "allow", "allow must be a list of tables"),
        ("[[allow]]\nhosts = ['b']\n", "allow.0", "'secret' is missing"),
        ("[[allow]]\nsecret = 'a'\n", "allow.0", "the entry has no effect"),
        (
            "[[allow]]\nsecret = 'a'\nallow_paths_outside_project = false\n",
            "allow.0",
            "the entry has no effect",
        ),
        (
            "[[allow]]\nsecret = 'a b'\nhosts = ['c']\n",
            "allow.0.secret",
            "secret: expected the name",
        ),
        ("[[allow]]\nsecret = 'a'\nhosts = 'b'\n", "allow.0.hosts", "hosts: expected a list"),
        ("[[allow]]\nsecret = 'a'\nhosts = []\n", "allow.0.hosts", "hosts: expected a list"),
        ("[[allow]]\nsecret = 'a'\nhosts = ['*']\n", "allow.0.hosts.0", "hosts: expected a host"),
        (
            "[[allow]]\nsecret = 'a'\nhosts = ['a.*.b']\n",
            "allow.0.hosts.0",
            "hosts: expected a host",
        ),
        (
            "[[allow]]\nsecret = 'a'\nhosts = ['https://b']\n",
            "allow.0.hosts.0",
            "hosts: expected a host",
        ),
        ("[[allow]]\nsecret = 'a'\nhosts = ['u@b']\n", "allow.0.hosts.0", "hosts: expected a host"),
        (
            "[[allow]]\nsecret = 'a'\ncommands = ['ls']\n",
            "allow.0.commands",
            "commands: expected true",
        ),
        (
            "[[allow]]\nsecret = 'a'\ncommands = [[1]]\n",
            "allow.0.commands.0.0",
            "commands: expected text",
        ),
        (
            "[[allow]]\nsecret = 'a'\nallow_paths_outside_project = 1\n",
            "allow.0.allow_paths_outside_project",
            "allow_paths_outside_project: expected true",
        ),
        ("[[policy]]\nname = 'x'\n", "policy.0", "the entry has no effect"),
        (
            "[[policy]]\nmax_hourly_cost = -1\n",
            "policy.0.max_hourly_cost",
            "max_hourly_cost: expected a non-negative number",
        ),
        (
            "[[policy]]\nmax_hourly_cost = true\n",
            "policy.0.max_hourly_cost",
            "max_hourly_cost: expected a non-negative number",
        ),
        ("[[policy]]\nregion = ['eu-*']\n", "policy.0.region", "unknown key 'region'"),
        ("[[policy]]\nsources = [1]\n", "policy.0.sources.0", "sources: expected text"),
        ("[[policy]]\nlevel = 'advisory'\n", "policy.0", "the entry has no effect"),
        ("[[policy]]\nrequire_pins = false\n", "policy.0", "the entry has no effect"),
        (
            "[[policy]]\nrule = 'true'\nlevel = 'high'\n",
            "policy.0.level",
            "level: expected advisory or mandatory",
        ),
        ("[[waiver]]\npolicy = 'x'\nreason = 'y'\n", "waiver.0", "'until' is missing"),
    ],
)
def test_what_is_wrong_is_told_at_its_place(
    tmp_path: Path, text: str, place: str, says: str
) -> None:
    """A permission that was mistyped must not look as if it were given; editors say so by the schema."""
    (one,) = wrong(tmp_path, text)
    assert f"{one.where}" == f"{tmp_path / 'trust.toml'}: {place}"
    assert says in one.summary
    assert not fits_schema(text)


WAIVED = """\
[[policy]]
name = "budget"
max_upstream_bytes = "2GiB"
keep_checkpoints = true

[[waiver]]
policy = "budget"
until = "2030-01-31"
reason = "final run"
"""


def refused(path: Path, outside: Path | None = None) -> str:
    with pytest.raises(TrustError) as caught:
        load_policies(path, outside=outside)
    return "; ".join(map(str, caught.value.diagnostics))


def test_policies_have_a_file_of_their_own(tmp_path: Path) -> None:
    """Outside of what they judge, with waivers of its policies, and without permissions."""
    path = tmp_path / "policy.toml"
    path.write_text(WAIVED)
    (policy,) = load_policies(path, outside=tmp_path / "project")
    assert policy.waiver == PolicyWaiver("2030-01-31", "final run")
    assert (policy.max_upstream_bytes, policy.keep_checkpoints) == (2 << 30, True)
    assert fits_schema(WAIVED)
    assert "inside the directory" in refused(path, tmp_path)
    for more, says in (
        ("[[allow]]\nsecret = '*'\ncommands = true\n", "unknown key 'allow'"),
        (WAIVED.partition("\n\n")[2].replace("budget", "other"), "no policy is named 'other'"),
        (WAIVED.partition("\n\n")[2].replace("2030-01-31", "soon"), "until: expected a date"),
    ):
        path.write_text(WAIVED.partition("\n\n")[0] + "\n" + more)
        assert says in refused(path)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Of every entry."""
    text = "[[allow]]\nsecret = 1\nhost = 2\n[[policy]]\nprovider = 3\n"
    assert len(wrong(tmp_path, text)) == 3


def test_what_is_no_toml_is_told(tmp_path: Path) -> None:
    """With its place."""
    (one,) = wrong(tmp_path, "[[allow]\n")
    assert (one.code, one.where and one.where.line) == ("syntax", 1)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_who_else_may_write_it_would_decide(tmp_path: Path, mode: int) -> None:
    """So such a file is refused, whoever may."""
    path = tmp_path / "trust.toml"
    path.write_text(RIGHT)
    path.chmod(mode)
    with pytest.raises(TrustError) as caught:
        read_trust(path)
    assert "other users can write to it" in str(caught.value.diagnostics)


def test_who_else_may_replace_it_would_decide(tmp_path: Path) -> None:
    """In a directory that others may write to; in one like /tmp they can't replace it."""
    home = tmp_path / "open"
    home.mkdir()
    path = home / "trust.toml"
    path.write_text(RIGHT)
    path.chmod(0o600)
    home.chmod(0o777)
    with pytest.raises(TrustError) as caught:
        read_trust(path)
    assert "other users can replace it" in str(caught.value.diagnostics)
    home.chmod(0o1777)
    assert read_trust(path).allowed


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's file")
def test_another_users_file_is_refused(tmp_path: Path) -> None:
    """It is not this user's word."""
    path = tmp_path / "trust.toml"
    path.write_text(RIGHT)
    path.chmod(0o644)
    os.chown(path, 12345, 12345)
    with pytest.raises(TrustError) as caught:
        read_trust(path)
    assert "owned by another user" in str(caught.value.diagnostics)


def test_a_file_of_the_manifest_is_refused(tmp_path: Path) -> None:
    """Also one that a link leads to."""
    inside = tmp_path / "project" / "sub"
    inside.mkdir(parents=True)
    (inside / "trust.toml").write_text(RIGHT)
    (inside / "trust.toml").chmod(0o600)
    link = tmp_path / "trust.toml"
    link.symlink_to(inside / "trust.toml")
    for path in (link, inside / "trust.toml"):
        with pytest.raises(TrustError) as caught:
            read_trust(path, outside=tmp_path / "project")
        assert "inside the directory of the manifest" in str(caught.value.diagnostics)


@pytest.mark.parametrize("kind", ["directory", "pipe", "gone", "binary"])
def test_what_can_not_be_read_is_no_permission(tmp_path: Path, kind: str) -> None:
    """And nobody waits for the other end of a pipe."""
    path = tmp_path / "trust.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
        path.chmod(0o600)
    with pytest.raises(TrustError):
        read_trust(path)
