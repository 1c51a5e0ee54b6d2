"""Values of secrets on their way into the program: what is masked from then on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainctl.desired.values import SecretSpec
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.model.redaction import MASK, Redactor
from trainctl.model.specs.auth import SourceAuthSpec
from trainctl.model.specs.resource import WeightsSpec
from trainctl.plugin_api.sources import SourceCredential
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


VALUE = "hf_0123456789abcdef"


def secrets(
    directory: Path, *specs: SecretSpec, redactor: Redactor | None = None, **environ: str
) -> SecretResolver:
    return SecretResolver(
        {spec.name: spec for spec in specs}, directory, environ, redactor or Redactor()
    )


def test_a_value_from_the_environment(tmp_path: Path) -> None:
    redactor = Redactor()
    result = secrets(
        tmp_path, SecretSpec("hf", "env", "HF_TOKEN"), redactor=redactor, HF_TOKEN=VALUE
    )
    assert result.value("hf") == VALUE
    assert redactor.redact(f"token {VALUE}") == f"token {MASK}"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (SecretSpec("a", "env", "NOT_SET"), "variable NOT_SET is not set"),
        (SecretSpec("a", "env", "EMPTY"), "variable EMPTY is not set"),
        (SecretSpec("a", "env", "SHORT"), "fewer than 8 characters"),
        (SecretSpec("a", "env", "PADDED"), "fewer than 8 characters"),
        (SecretSpec("a", "file", "gone"), "cannot read gone: No such file"),
        (SecretSpec("a", "file", "binary"), "binary is not UTF-8"),
        (SecretSpec("a", "file", "blank"), "secret 'a': the value is empty"),
        (SecretSpec("a", "file", "blank", redact=False), "secret 'a': the value is empty"),
        (SecretSpec("b", "env", "SHORT"), "'a' is not declared"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, spec: SecretSpec, text: str) -> None:
    """Where the value was looked for, and never the value."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe12345678")
    (tmp_path / "blank").write_bytes(b" \r\n")
    redactor = Redactor()
    environ = {"SHORT": "s3cret", "PADDED": "    x    ", "EMPTY": ""}
    result = secrets(tmp_path, spec, redactor=redactor, **environ)
    with pytest.raises(TrainctlError) as caught:
        result.value("a")
    assert text in caught.value.summary
    assert "s3cret" not in str(caught.value)
    assert redactor.redact("an x of padding") == "an x of padding"  # with its words, too


def test_a_short_value_may_be_declared_unmasked(tmp_path: Path) -> None:
    redactor = Redactor()
    spec = SecretSpec("pin", "env", "PIN", redact=False)
    assert secrets(tmp_path, spec, redactor=redactor, PIN="1234").value("pin") == "1234"
    assert redactor.redact("1234") == "1234"


def test_what_can_be_read_is_known_beforehand(tmp_path: Path) -> None:
    """One that is missing doesn't keep the others from being masked."""
    redactor = Redactor()
    specs = (SecretSpec("gone", "env", "GONE"), SecretSpec("hf", "env", "HF_TOKEN"))
    secrets(tmp_path, *specs, redactor=redactor, HF_TOKEN=VALUE).register_known()
    assert redactor.redact(VALUE) == MASK


def test_what_opens_a_source(tmp_path: Path) -> None:
    """The declared secret, without line ends that no header can hold; nothing where nothing is declared.

    A host that only the manifest names gets none.
    """
    result = secrets(tmp_path, SecretSpec("hf", "env", "HF_TOKEN"), HF_TOKEN=f" {VALUE}\n")
    auth = SourceAuthSpec("CUSTOM_SECRET", "hf")
    hub = WeightsSpec("hf://a/b", auth=auth)
    assert result.declared_credential(hub) == SourceCredential(VALUE, "secret hf")
    assert result.declared_credential(WeightsSpec(hub.source)) is None
    web = WeightsSpec("https://files.example:8443/w.bin", auth=auth)
    with pytest.raises(PermissionDenied, match=r"secret 'hf' is not sent to files\.example:8443"):
        result.declared_credential(web)
    assert result.declared_credential(WeightsSpec(web.source)) is None


def test_what_was_found_elsewhere_is_masked_as_well(tmp_path: Path) -> None:
    """A token that a library found in its usual place."""
    redactor = Redactor()
    result = secrets(tmp_path, redactor=redactor).registered(SourceCredential(VALUE, "~/.cache"))
    assert result is not None
    assert redactor.redact(VALUE) == MASK


@pytest.mark.parametrize("value", [f"{VALUE} {VALUE}", f"{VALUE}\n{VALUE}", f"{VALUE}é"])
def test_what_no_header_can_hold_is_not_used(tmp_path: Path, value: str) -> None:
    """The library that would refuse it repeats it in its message. The error names where the token came from, only."""
    with pytest.raises(TrainctlError) as caught:
        secrets(tmp_path).registered(SourceCredential(value, "~/.cache/token"))

    assert caught.value.code == "unusable-secret"
    assert "~/.cache/token" in caught.value.summary
    assert VALUE not in str(caught.value)
