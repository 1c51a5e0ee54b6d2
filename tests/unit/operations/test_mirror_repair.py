"""Whom a repair asks for what a mirror has lost, and what it makes of answers that are none."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.hub import Fault, Hub, serve
from tests.support.mirrors import impatient
from tests.support.plans import desired
from trainctl.desired.values import Desired
from trainctl.errors import Interrupted, SourceError, SourceGone
from trainctl.operations.mirror_repair import Origins
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.retry import Retry
from trainctl.weights.sources.gates import GATES


class _NoSecrets:
    def declared_credential(self, attributes: object) -> None:
        """Nothing is declared."""

    def registered(self, credential: object) -> None:
        """Nothing is sent."""


@dataclass
class _Setting:
    directory: Path


@dataclass
class _Workspace:
    """As much of a workspace as is asked for."""

    setting: _Setting
    desired: Desired = field(default_factory=desired)
    secrets: _NoSecrets = field(default_factory=_NoSecrets)
    retry: Retry = field(default_factory=impatient)


@pytest.fixture
def origins(tmp_path: Path) -> Origins:
    """Of a project that declares no weights."""
    GATES.clear()
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
