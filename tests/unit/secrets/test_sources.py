"""Values of secrets from files, commands, keyrings and AWS, and what errors never show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.servers.buckets import free_port, moto
from trainctl.desired.values import SecretSpec
from trainctl.errors import PermissionDenied, SecretUnavailable, TrainctlError
from trainctl.model.redaction import MASK, Redactor
from trainctl.model.trust import AllowEntry, Trust, default_trust
from trainctl.secrets.resolver import SecretResolver
from trainctl.secrets.sources import MAX_BYTES, SECRET_STORES, SecretSources, run_secret_command

VALUE = "Kd4mP9sL1yB6-value"
RUNS = AllowEntry("one", commands=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The manifest's directory."""
    place = tmp_path / "home"
    place.mkdir()
    return place


def secrets(
    home: Path, spec: SecretSpec, *allowed: AllowEntry, redactor: Redactor | None = None
) -> SecretResolver:
    environ = {**os.environ, "HOME": str(home.parent)}
    trust = Trust("trust.toml", allowed)
    return SecretResolver({spec.name: spec}, home, environ, redactor or Redactor(), lambda: trust)


def command(*words: str) -> SecretSpec:
    return SecretSpec("one", "command", words[0], command=words)


def said_by(home: Path, *words: str) -> str:
    return secrets(home, command(*words), RUNS).value("one")


def failure(home: Path, spec: SecretSpec, *allowed: AllowEntry) -> TrainctlError:
    with pytest.raises(TrainctlError) as caught:
        secrets(home, spec, *allowed).value(spec.name)
    assert VALUE not in f"{caught.value}"
    return caught.value


# Files


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (f"{VALUE}\n", VALUE),
        (f"{VALUE}\r\n", VALUE),
        (f"{VALUE}\n\n", f"{VALUE}\n"),
        (f"  {VALUE}", f"  {VALUE}"),
    ],
)
def test_one_line_end_of_a_file_is_dropped(home: Path, data: str, value: str) -> None:
    """The one that editors add; all else belongs to the value. The file is known, as it is never code."""
    (home / "f").write_bytes(data.encode())
    result = secrets(home, SecretSpec("one", "file", "f"))
    assert (result.value("one"), result.files()) == (value, ((home / "f").resolve(),))


@pytest.mark.parametrize("kind", ["directory", "pipe", "large"])
def test_what_is_no_secrets_file_is_refused(home: Path, kind: str) -> None:
    """A directory, a pipe that nobody writes to, and what no secret is as long as."""
    if kind == "directory":
        (home / "f").mkdir()
    elif kind == "pipe":
        os.mkfifo(home / "f")
    else:
        (home / "f").write_text(VALUE + "x" * MAX_BYTES)
    error = failure(home, SecretSpec("one", "file", "f"))
    assert error.summary.startswith("secret 'one': ")


@pytest.mark.parametrize("source", ["../outside", "~/outside", "{top}/outside", "link"])
def test_a_file_outside_may_be_allowed(home: Path, source: str) -> None:
    """For the secret of that name only. Otherwise a stranger's manifest reads no files of this machine."""
    (home.parent / "outside").write_text(VALUE)
    (home / "link").symlink_to("../outside")
    spec = SecretSpec("one", "file", source.format(top=home.parent))
    item, other = (AllowEntry(name, allow_paths_outside_project=True) for name in ("one", "other"))
    assert secrets(home, spec, item).value("one") == VALUE
    for allowed in ((), (other,), (RUNS,)):
        error = failure(home, spec, *allowed)
        assert isinstance(error, PermissionDenied)
        assert error.code == "secret-outside-project"
        assert "outside the manifest's directory" in error.summary


# Commands


def test_what_a_command_prints(home: Path) -> None:
    """Without a shell, in the manifest's directory, with nothing to read; masked from then on."""
    assert said_by(home, "echo", VALUE, "$HOME", "*") == f"{VALUE} $HOME *"
    assert said_by(home, "pwd") == str(home)
    assert said_by(home, sys.executable, "-c", "import sys; print(repr(sys.stdin.read()) * 5)")
    redactor = Redactor()
    spec = command("echo", VALUE)
    secrets(home, spec, AllowEntry("*", commands=True), redactor=redactor).value("one")
    assert redactor.redact(VALUE) == MASK


def test_a_command_is_run_once(home: Path) -> None:
    """However many use its value, and from however many threads."""
    result = secrets(home, command("sh", "-c", f"echo x >> ran; echo {VALUE}"), RUNS)
    threads = [threading.Thread(target=result.value, args=("one",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (home / "ran").read_text() == "x\n"


def test_a_command_is_not_run_to_know_what_to_mask(home: Path) -> None:
    """What has to be run or asked for is known when it is used."""
    result = secrets(home, command("touch", "ran"), RUNS)
    result.register_known()
    result.check_allowed("one")
    assert not (home / "ran").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("no-such-program-here",), "program no-such-program-here not found"),
        (("/no/such/program",), "cannot run /no/such/program: No such file or directory"),
        (("sh", "-c", "exit 3"), "sh exited with 3"),
        (("sh", "-c", f"head -c {MAX_BYTES * 3} /dev/zero | tr '\\0' a"), "longer than 64 KiB"),
        (("printf", "\\377\\376aaaaaaaaaa"), "is not UTF-8 text"),
        (("true",), "the value is empty"),
    ],
)
def test_a_command_that_gives_no_value_is_told(
    home: Path, words: tuple[str, ...], says: str
) -> None:
    """With the secret's name and what the command did."""
    assert says in failure(home, command(*words), RUNS).summary


def test_what_a_command_complains_of_is_shown_without_its_output(home: Path) -> None:
    """Its last words say why it failed; what it had printed is masked in them."""
    redactor = Redactor()
    text = f"echo {VALUE}; echo 'first' >&2; echo 'locked: {VALUE}' >&2; exit 1"
    result = secrets(home, command("sh", "-c", text), RUNS, redactor=redactor)
    with pytest.raises(TrainctlError) as caught:
        result.value("one")
    assert redactor.redact(caught.value.detail) == f"locked: {MASK}"


def test_a_command_that_does_not_end_is_ended(home: Path) -> None:
    """With all that it started, when its time is over."""
    words = ("sh", "-c", "sleep 1000 & echo $! > pid; wait")
    context = SecretSources(home, os.environ, default_trust, str)
    with pytest.raises(TrainctlError, match="timed out after 1 s"):
        run_secret_command(command(*words), context, seconds=1.0)
    pid = (home / "pid").read_text().strip()
    wait_for(lambda: state_of(pid) in ("", "Z"))


def state_of(pid: str) -> str:
    done = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False)  # fmt: skip
    return done.stdout.strip()[:1]


@pytest.mark.parametrize(
    ("commands", "runs"),
    [
        (True, True),
        ((("echo", VALUE),), True),
        ((("echo", VALUE, ""),), False),
        ((("echo",),), False),
        (False, False),
    ],
)
def test_which_commands_are_allowed(
    home: Path, commands: bool | tuple[tuple[str, ...], ...], *, runs: bool
) -> None:
    """All, or exactly those that are written out, for the secret of that name."""
    spec, allowed = command("echo", VALUE), AllowEntry("one", commands=commands)
    if runs:
        assert secrets(home, spec, allowed).value("one") == VALUE
    else:
        with pytest.raises(PermissionDenied, match="its command is not run"):
            secrets(home, spec, allowed).value("one")


@pytest.mark.parametrize("name", ["./give", "sub/../give", "ABSOLUTE", "../home/give", "give"])
def test_a_program_of_the_manifest_is_not_what_was_written_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whoever writes the manifest writes it, too: by whatever path, and on a PATH that leads here."""
    (home / "sub").mkdir()
    (home / "give").write_text(f"#!/bin/sh\necho {VALUE}\n")
    (home / "give").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    spec = command(name.replace("ABSOLUTE", str(home / "give")))
    with pytest.raises(PermissionDenied, match="its command is not run"):
        secrets(home, spec, AllowEntry("one", commands=(spec.command,))).value("one")
    assert secrets(home, spec, RUNS).value("one") == VALUE


# Keyrings


@pytest.fixture
def keyring_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A keyring whose entries lie in a file of the test's."""
    import keyring
    from keyrings.alt.file import PlaintextKeyring

    backend = PlaintextKeyring()
    monkeypatch.setattr(type(backend), "file_path", str(tmp_path / "keyring.cfg"))
    before = keyring.get_keyring()
    keyring.set_keyring(backend)
    yield
    keyring.set_keyring(before)


@pytest.mark.usefixtures("keyring_in_a_file")
def test_secrets_of_a_keyring(home: Path) -> None:
    """By service and user; trainctl's own service where none is named. What is stored is what is read."""
    store = SECRET_STORES["keyring"]
    own = SecretSpec("one", "keyring", "one")
    other = SecretSpec("one", "keyring", "me", service="hub")
    assert "'one' not found in the keyring (service 'trainctl')" in failure(home, own).summary
    assert store.look(own) is None
    store.put(own, VALUE)
    store.put(other, VALUE + "2")
    assert secrets(home, own).value("one") == VALUE
    assert secrets(home, other).value("one") == VALUE + "2"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AWS as the environment names it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-real-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield


def in_aws(name: str, key: str | None = None, region: str | None = None) -> SecretSpec:
    return SecretSpec("one", "aws-secrets-manager", name, key=key, region=region)


@pytest.mark.integration
def test_secrets_of_aws(home: Path, aws: None) -> None:
    """All of one, or a member; in the region that is named, else in the environment's."""
    client = boto3.client("secretsmanager", region_name="us-east-1")
    client.create_secret(Name="prod/plain", SecretString=VALUE)
    client.create_secret(Name="prod/json", SecretString=json.dumps({"token": VALUE, "n": 1}))
    client.create_secret(Name="prod/bytes", SecretBinary=b"bytes")
    there = boto3.client("secretsmanager", region_name="eu-west-1")
    there.create_secret(Name="there", SecretString=VALUE)

    assert secrets(home, in_aws("prod/plain")).value("one") == VALUE
    assert secrets(home, in_aws("prod/json", "token")).value("one") == VALUE
    assert secrets(home, in_aws("there", region="eu-west-1")).value("one") == VALUE
    assert "'there' not found in AWS Secrets Manager" in failure(home, in_aws("there")).summary
    assert (
        "not a JSON object with text under 'n'" in failure(home, in_aws("prod/json", "n")).summary
    )
    assert "not a JSON object" in failure(home, in_aws("prod/plain", "token")).summary
    assert "is not text" in failure(home, in_aws("prod/bytes")).summary


@pytest.mark.integration
def test_aws_that_does_not_answer_withholds_a_secret(
    home: Path, aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was asked and doesn't give it is told from what isn't there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    error = failure(home, in_aws("prod/plain", region="us-east-1"))
    assert isinstance(error, SecretUnavailable)
    assert "AWS Secrets Manager is unreachable" in error.summary


@pytest.mark.integration
def test_storing_in_aws(home: Path, aws: None) -> None:
    """Made where there is none, a new version where there is one; other members of an object stay."""
    store = SECRET_STORES["aws-secrets-manager"]
    plain, part = in_aws("new/plain"), in_aws("new/json", "token")
    assert store.look(plain) is None
    first = store.put(plain, VALUE)
    second = store.put(plain, VALUE + "2")
    kept = store.look(plain)
    assert kept is not None
    assert (kept.value, kept.version) == (VALUE + "2", second)
    assert first != second

    boto3.client("secretsmanager").create_secret(Name="new/json", SecretString='{"other": "x"}')
    store.put(part, VALUE)
    assert secrets(home, part).value("one") == VALUE
    assert secrets(home, SecretSpec("o", "aws-secrets-manager", "new/json", key="other", redact=False)).value("o") == "x"  # fmt: skip
    with pytest.raises(TrainctlError, match="not a JSON object"):
        store.put(in_aws("new/plain", "token"), VALUE)
