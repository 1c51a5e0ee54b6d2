"""Values of secrets on their way into the program: what is masked from then on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainctl.desired.values import SecretSpec
from trainctl.errors import TrainctlError
from trainctl.model.redaction import MASK, Redactor
from trainctl.secrets.resolver import SecretResolver


def secrets_of(tmp_path: Path, value: str, redactor: Redactor) -> SecretResolver:
    (tmp_path / "value").write_text(value, encoding="utf-8")
    spec = SecretSpec("one", "file", "value")
    return SecretResolver({"one": spec}, tmp_path, {}, redactor)


def test_members_of_a_json_secret_are_masked_by_themselves(tmp_path: Path) -> None:
    """What lies under a name that sounds secret, at any depth; a region and a key's id are no secrets."""
    key = {"secret_access_key": "Xc7Vb2Nm9Qw4", "access_key_id": "AKIDEXAMPLE"}
    document = {"region": "us-west-2", "aws": key}
    redactor = Redactor()
    secrets_of(tmp_path, json.dumps(document), redactor).value("one")

    shown = redactor.redact("AKIDEXAMPLE Xc7Vb2Nm9Qw4 in us-west-2")
    assert shown == f"AKIDEXAMPLE {MASK} in us-west-2"


def test_a_value_with_a_nul_is_refused(tmp_path: Path) -> None:
    """No variable can hold it, and starting the job would fail in a way that tells nobody why."""
    with pytest.raises(TrainctlError, match="secret 'one' contains a NUL character"):
        secrets_of(tmp_path, "nul\0in-the-middle", Redactor()).value("one")
