"""Plan files: complete or not written, readable by their owner only, and signed by a known signer if that is required."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from trainctl.cli.plans import ApplyFlags, load_plan, save_plan
from trainctl.desired.values import DesiredState
from trainctl.errors import PermissionDenied, StorageError, TrainctlError, UsageError
from trainctl.model.address import Address
from trainctl.plan.changes import plan_digest
from trainctl.plan.values import ImageRow, Plan

PLAN = Plan("lineage", 3, "sha256:m", (), digest=plan_digest((), "lineage", ""))


def test_a_plan_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    """Nobody else may read it, and no other file is left."""
    desired = DesiredState(tmp_path, {}, {})
    save_plan(tmp_path / "p.bin", PLAN, desired)
    save_plan(tmp_path / "p.bin", PLAN, desired)
    assert load_plan(tmp_path / "p.bin").plan == PLAN
    assert (tmp_path / "p.bin").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["p.bin"]


def test_a_plan_that_cannot_be_saved_or_loaded(tmp_path: Path) -> None:
    """In place of a directory, or in one that is missing: nothing is left. Loading it is wrong usage."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "x").touch()
    for name in ("directory", "missing/p.bin"):
        with pytest.raises(StorageError, match="cannot write"):
            save_plan(tmp_path / name, PLAN, DesiredState(tmp_path, {}, {}))
        assert [path.name for path in tmp_path.iterdir()] == ["directory"]
    with pytest.raises(UsageError) as caught:
        load_plan(tmp_path / "p.bin")
    assert "trainctl plan --out" in caught.value.detail
    with pytest.raises(UsageError, match="cannot read"):
        load_plan(tmp_path)


def test_a_reviewed_plan_needs_the_digests_of_its_images() -> None:
    """An image by name is refused with exit 13, unless that is allowed."""
    by_name = ImageRow(Address.parse("job.a"), 0, None, "acme/x:1", None, None)
    plan = replace(PLAN, images=(by_name,))

    with pytest.raises(PermissionDenied, match="the digest of acme/x:1 is unknown") as caught:
        ApplyFlags().require_images(plan)
    assert caught.value.exit_code == 13
    ApplyFlags(allow_unresolved_images=True).require_images(plan)
    ApplyFlags().require_images(
        replace(plan, images=(replace(by_name, digest="sha256:" + "a" * 64),))
    )


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A private key; its signer is in ``signers``."""
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def signers(key: Path, options: str = 'namespaces="trainctl-plan"', who: str = "kim@x") -> Path:
    """A file of allowed signers with one entry."""
    path = key.with_name("signers")
    path.write_text(f"{who} {options} {key.with_name('key.pub').read_text()}")
    return path


def save(key: Path, name: str = "p.bin") -> Path:
    """A signed plan."""
    plan = key.with_name(name)
    save_plan(plan, PLAN, DesiredState(key.parent, {}, {}), None, key)
    return plan


@pytest.mark.parametrize("who", ["kim@x", "*@x", "lee@x,kim@x"])
def test_a_signed_plan_is_read(key: Path, who: str) -> None:
    """By its signer, a pattern, or one of several names."""
    assert load_plan(save(key), signers=signers(key, who=who)).plan == PLAN


@pytest.mark.parametrize("options", ['valid-before="20200101"', 'namespaces="git"'])
def test_a_signer_who_may_not_sign_is_refused(key: Path, options: str) -> None:
    """Whose key has expired, or is for other things."""
    with pytest.raises(PermissionDenied, match="no signer in") as caught:
        load_plan(save(key), signers=signers(key, options))
    assert (caught.value.exit_code, caught.value.code) == (13, "untrusted-signature")
    assert "ssh-keygen reports: " in caught.value.detail


def test_an_unknown_signer_a_changed_plan_and_no_signature_are_refused(
    key: Path, tmp_path: Path
) -> None:
    """Before anything of the plan is used: what follows isn't even a plan file."""
    plan = save(key)
    allowed = signers(key)
    text = allowed.read_text()
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    allowed.write_text(f"kim@x {(tmp_path / 'other.pub').read_text()}")
    with pytest.raises(PermissionDenied, match="no signer"):
        load_plan(plan, signers=allowed)
    allowed.write_text(text)
    plan.write_bytes(b"[" * 100_000)
    with pytest.raises(PermissionDenied, match="no signer"):
        load_plan(plan, signers=allowed)
    (tmp_path / "p.bin.sig").unlink()
    with pytest.raises(PermissionDenied, match="the plan is not signed"):
        load_plan(plan, signers=allowed)
    with pytest.raises(UsageError, match="file not found"):
        load_plan(plan, signers=tmp_path / "missing")


def test_an_agent_signs_with_a_public_key(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The private key is in ssh-agent only; without the agent, nothing is written."""
    public = key.with_name("key.pub")
    words = subprocess.run(["ssh-agent", "-s"], check=True, capture_output=True, text=True).stdout
    values = dict(word.split("=") for word in words.replace(";", "\n").split("\n") if "=" in word)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", values["SSH_AUTH_SOCK"])
        subprocess.run(["ssh-add", "-q", key], check=True)
        key.unlink()
        assert load_plan(save(public), signers=signers(key)).plan == PLAN
    finally:
        os.kill(int(values["SSH_AGENT_PID"]), signal.SIGTERM)
    with pytest.raises(TrainctlError, match="cannot sign") as caught:
        save(public, "q.bin")
    assert caught.value.code == "signing-failed"
    assert not key.with_name("q.bin").exists()
