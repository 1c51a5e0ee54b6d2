"""What a cluster of hosts may say, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.cases import by_text
from tests.support.projects.manifests import schema_of
from trainctl.desired.build import build
from trainctl.errors import ManifestError
from trainctl.manifest.read import read
from trainctl.model.diagnostics import Diagnostic
from trainctl.plugin_api.provider import ClusterSettings
from trainctl_ssh import SshProvider
from trainctl_ssh.settings import schema

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBQB3o09pUUrVmkM76XCxr3y4GPPjyUICPix+Z3QDjU5"
VALID = Draft202012Validator(schema())
FIELDS = ("name", "address", "user", "identity_file", "jump", "host_key", "python", "dir")


def wrong(directory: Path, hosts: str) -> list[str]:
    """What validation says of a cluster with these hosts."""
    text = f"clusters: {{lab: {{provider: ssh, hosts: {hosts}}}}}\njobs: {{a: {{runtime: {{start_commands: [x]}}}}}}\n"
    (directory / "trainctl.yaml").write_text(text)
    provider = SshProvider()
    try:
        build(
            read(directory),
            provider_schema=lambda name: provider.schema() if name == "ssh" else schema_of(name),
            provider_check=lambda _, cluster: provider.check(cluster),
            providers=["local", "ssh"],
        )
    except ManifestError as failure:
        return [
            f"{one.summary}. {one.detail}"
            for one in failure.diagnostics
            if isinstance(one, Diagnostic)
        ]
    return []


@pytest.mark.parametrize(("hosts", "said"), by_text("ssh/invalid_hosts"))
def test_what_is_wrong_is_said(tmp_path: Path, hosts: str, said: str) -> None:
    """One error each, that says what to write."""
    found = wrong(tmp_path, hosts)

    assert len(found) == 1, found
    assert said in found[0]


def test_what_is_right_is_not_complained_about(tmp_path: Path) -> None:
    """Names, addresses of both families, and every field."""
    full = (
        f"{{name: gpu-3, address: '2001:db8::1', user: ml, port: 2222, identity_file: '~/.ssh/a key', jump: 'b@h:22,c',"
        f" host_key: {KEY} me@here, python: ~/bin/python, dir: /nvme/x, gpus: 4, price_per_hour: 2.5}}"
    )

    assert (
        wrong(
            tmp_path,
            f"[gpu-1, 10.0.0.2, {full}, {{address: x, dir: /a}}, {{name: y, address: x, dir: /b}}]",
        )
        == []
    )


@given(st.sampled_from(FIELDS), st.text(max_size=30))
def test_a_hostile_value_is_no_option_and_no_second_word(field: str, value: str) -> None:
    """Whatever the schema takes begins with no dash, and has no control character; but for paths and keys, no space."""
    host: dict[str, Any] = {"name": "a", field: value}
    if VALID.is_valid({"hosts": [host]}):
        assert not value.startswith("-")
        assert all(character.isprintable() or ord(character) > 0x7F for character in value)
        if field in ("name", "address", "user", "jump"):
            assert not set(value) & set(" \t\n;|&$`<>(){}*?!'\"\\#~")


def test_what_a_cluster_says_holds_for_its_hosts() -> None:
    """Account, port and jump of the cluster, unless a host has its own; a key without its comment."""
    settings: dict[str, Any] = {
        "user": "ml",
        "port": 2222,
        "hosts": ["a", {"address": "b", "user": "me", "host_key": f"{KEY}  me@here"}],
    }
    first, second = SshProvider().plan(ClusterSettings("lab", settings))

    assert (first.id, first.address, first.details) == (
        "lab/a",
        "a",
        {"user": "ml", "port": 2222, "connect_timeout": 10},
    )
    assert (second.name, second.details["user"], second.details["host_key"]) == ("b", "me", KEY)
