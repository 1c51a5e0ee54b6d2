"""Whom a repair asks for what a mirror has lost, and what it makes of answers that are none."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.hub import Fault, Hub, serve
from tests.support.mirrors import impatient
from tests.support.plans import at, desired
from trainctl.base.http.limits import LIMITS
from trainctl.base.retry import Retry
from trainctl.desired.values import Desired
from trainctl.errors import Interrupted, SourceDenied, SourceError, SourceGone
from trainctl.ledger.state import Recorded, State
from trainctl.model.address import Address
from trainctl.operations.mirror_repair import Origins, OriginsOfOthers, verify_mirror
from trainctl.weights.mirror.afresh import Origin


class _NoSecrets:
    def declared_credential(self, attributes: object) -> None:
        """Nothing is declared."""

    def registered(self, credential: object) -> object:
        """Nothing of it is shown."""
        return credential


@dataclass
class _Setting:
    directory: Path


@dataclass
class _Ledger:
    """A state with these weights."""

    weights: dict[Address, Recorded] = field(default_factory=dict)

    def state(self) -> State:
        return State(resources=self.weights)


@dataclass
class _Mirror:
    """Remembers whom it was to ask."""

    path: str | None
    url: str = "file:///mirror"
    endpoint: str | None = None
    on_a_host: bool = False
    in_a_bucket: bool = False
    asked: list[object] = field(default_factory=list)

    def verify(self, origins: Any, progress: object, own: object) -> None:
        self.asked.append(type(origins.__self__))


@dataclass
class _Workspace:
    """As much of a workspace as is asked for."""

    setting: _Setting
    ledger: _Ledger = field(default_factory=_Ledger)
    declared_mirror: _Mirror | None = None
    mirror: _Mirror | None = None
    desired: Desired = field(default_factory=desired)
    secrets: _NoSecrets = field(default_factory=_NoSecrets)
    retry: Retry = field(default_factory=impatient)


@pytest.fixture
def origins(tmp_path: Path) -> Origins:
    """Of a project that declares no weights."""
    LIMITS.clear()
    return Origins(cast(Any, _Workspace(_Setting(tmp_path))))


def record(hub: Hub, commit: str) -> dict[str, str]:
    return {"source": "hf://acme/model", "endpoint": hub.url, "revision": commit}


def test_who_was_not_asked_has_not_said_that_it_is_gone(
    origins: Origins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment names another Hub than the content came from: nothing goes for that."""
    with serve() as hub:
        commit = hub.add("acme/model", {"a.json": b"{}"})
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(SourceError, match="names another server") as caught:
            origins.of(record(hub, commit), threading.Event())
    assert not isinstance(caught.value, SourceGone)
    assert hub.seen == []


def test_who_interrupts_does_not_wait_for_a_server(
    origins: Origins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it asks to wait; and that is nothing to be remembered of the source."""
    halt = threading.Event()
    halt.set()
    with serve() as hub:
        commit = hub.add("acme/model", {"a.json": b"{}"})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.faults = [Fault("status", "", status=500)]
        with pytest.raises(Interrupted):
            origins.of(record(hub, commit), halt)
        assert origins.of(record(hub, commit), threading.Event()).resolved.files


def test_a_server_that_is_busy_is_asked_again(
    origins: Origins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that is wrong of a source would stay so because of one answer."""
    with serve() as hub:
        commit = hub.add("acme/model", {"a.json": b"{}"})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.faults = [Fault("status", "", status=500)]
        found: Origin = origins.of(record(hub, commit), threading.Event())
    assert [file.path for file in found.resolved.files] == ["a.json"]


def others(tmp_path: Path, **sources: str) -> OriginsOfOthers:
    """Of a project whose state has these weights, which its manifest doesn't name any more."""
    LIMITS.clear()
    named = {at(f"weights.{name}"): {"source": source} for name, source in sources.items()}
    weights = {one: Recorded(one, "", attributes, {}) for one, attributes in named.items()}
    return OriginsOfOthers(cast(Any, _Workspace(_Setting(tmp_path), _Ledger(weights))))


def test_files_that_others_name_are_not_read_for_them(tmp_path: Path) -> None:
    """Else whoever writes a reference could have what only this user may read; what this project had is its own."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "other").write_text("other")
    origins, halt = others(tmp_path, had="file:./mine"), threading.Event()

    found = origins.of({"source": f"file://{tmp_path}/mine", "revision": ""}, halt)

    assert [file.path for file in found.resolved.files] == ["mine"]
    with pytest.raises(SourceDenied, match="is not a source of this project"):
        origins.of({"source": f"file://{tmp_path}/other", "revision": ""}, halt)


def test_what_others_name_is_asked_for_without_our_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private repository that this project had is asked for with it."""
    with serve() as hub:
        hub.token = "hf_" + "t" * 30
        commit = hub.add("acme/model", {"a.json": b"{}"}, private=True)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", hub.token)
        ours = others(tmp_path, had="hf://acme/model").of(record(hub, commit), threading.Event())
        hub.seen.clear()
        with pytest.raises(SourceError):
            others(tmp_path, had="hf://acme/another").of(record(hub, commit), threading.Event())
        sent = [one.headers.get("Authorization") for one in hub.seen]

    assert [file.path for file in ours.resolved.files] == ["a.json"]
    assert sent
    assert set(sent) == {None}


@pytest.mark.parametrize(
    ("modes", "asked"),
    [
        ({}, Origins),
        ({"": 0o700, "references": 0o700}, Origins),
        ({"": 0o2770, "references": 0o2770}, OriginsOfOthers),
        ({"": 0o707}, OriginsOfOthers),
        ({"": 0o755, "references": 0o2770}, OriginsOfOthers),
        (None, OriginsOfOthers),
    ],
)
def test_whose_word_a_mirror_is_depends_on_who_may_write_there(
    tmp_path: Path, modes: dict[str, int] | None, asked: type
) -> None:
    """What several users write to, as what is on a host or in a bucket, says itself whom to ask; what is this user's alone says what they said."""
    root = tmp_path / "mirror"
    for name, mode in (modes or {}).items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(mode)
    mirror = _Mirror(str(root), on_a_host=modes is None)
    workspace = _Workspace(_Setting(tmp_path), declared_mirror=mirror, mirror=mirror)

    verify_mirror(cast(Any, workspace), repair=True)

    assert mirror.asked == [asked]
