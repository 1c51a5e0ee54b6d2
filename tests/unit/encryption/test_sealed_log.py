"""Encrypted state logs: nothing readable, nothing exchanged, dropped or rolled back unnoticed; keys that change."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_log import MemoryLog
from tests.support.sealed import KEY, OTHER_KEY, sealed_log
from tests.support.storage.ledgers import SFT, begin, ledger_on, record
from trainctl.encryption.keys import EncryptionKeys
from trainctl.encryption.sealed_log import SealedLog
from trainctl.errors import StateError
from trainctl.ledger.edits import migrate
from trainctl.ledger.ledger import Ledger
from trainctl.model.specs.location import StateKey
from trainctl.operations.states import rekey
from trainctl.plugin_api.state import StateLog
from trainctl.store.objects import MemoryObjects
from trainctl_state import BucketLog, ObjectLog

PLANTED = ("job.sft", "10.0.0.7", "hunter2-of-the-team")
Log = Callable[[MemoryObjects, str], StateLog]


def entry(text: str = "") -> dict[str, str]:
    """Return an entry with all that must not be readable."""
    return {"id": str(uuid.uuid4()), "type": "note", "text": f"{text} {' '.join(PLANTED)}"}


def raw(objects: MemoryObjects) -> Iterator[tuple[str, bytes]]:
    for key in [
        key for prefix in ("log", "snapshots", "history") for key, *_ in objects.list(prefix)
    ]:
        yield key, objects.get(key) or b""
    yield "tail.json", objects.get("tail.json") or b""


def filled(objects: MemoryObjects, memory: Path, kind: Log = ObjectLog) -> SealedLog:
    """A log of nine batches with snapshots after the third and the sixth."""
    log = sealed_log(kind(objects, "s3://team/state"), memory)
    for number in range(9):
        log.append(number, [entry(f"{number}a"), entry(f"{number}b")])
        if number in (2, 5):
            log.snapshot(number + 1, {"version": 1, "planted": list(PLANTED)})
    return log


@pytest.mark.parametrize("kind", [ObjectLog, BucketLog])
def test_no_object_shows_what_is_in_it(kind: Log, tmp_path: Path) -> None:
    """Not in the log, its snapshots, its history, or its tail; all of it is read back."""
    objects = MemoryObjects()
    log = filled(objects, tmp_path / "seen", kind)
    stored = dict(raw(objects))
    assert len(stored) > 10
    assert [key for key, data in stored.items() for word in PLANTED if word.encode() in data] == []
    assert b"note" not in b"".join(stored.values())
    read = sealed_log(kind(objects, log.url), tmp_path / "other").read()
    assert read.snapshot == {"version": 1, "planted": list(PLANTED)}
    assert [str(item["text"])[:2] for item in read.entries] == ["6a", "6b", "7a", "7b", "8a", "8b"]
    assert len(list(log.replay())) == 18


LOG7, LOG8, LOG9 = (f"log/00000000000{number}.json" for number in (7, 8, 9))
Objects = dict[str, bytes]


def changed(data: bytes, edit: Callable[[Any], None]) -> bytes:
    """JSON, edited."""
    body = json.loads(data)
    edit(body)
    return json.dumps(body).encode()


ATTACKS: dict[str, Callable[[Objects, Objects], Objects]] = {
    "exchanged batches": lambda mine, other: {LOG7: mine[LOG8], LOG8: mine[LOG7]},
    "a copy of a batch that claims the position of another one": lambda mine, other: {
        LOG8: changed(mine[LOG7], lambda body: body["entries"][0]["sealed"].update(position=8))
    },
    "shortened batch": lambda mine, other: {
        LOG8: changed(mine[LOG8], lambda body: body["entries"].pop())
    },
    "older snapshot": lambda mine, other: {
        "snapshots/000000000006.json": mine["snapshots/000000000003.json"]
    },
    "added plain entry": lambda mine, other: {
        LOG9: b'{"version": 1, "entries": [{"id": "x", "type": "comment", "text": "plain"}]}'
    },
    "batch of another state with the same key": lambda mine, other: {LOG8: other[LOG8]},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_somebody_exchanged_is_refused(attack: str, tmp_path: Path) -> None:
    """By a machine that has never seen the state, too."""
    objects, others = MemoryObjects(), MemoryObjects()
    url = filled(objects, tmp_path / "seen").url
    other = sealed_log(ObjectLog(others, "s3://team/other"), tmp_path / "other")
    for number in range(9):
        other.append(number, [entry()])
    for key, data in ATTACKS[attack](dict(raw(objects)), dict(raw(others))).items():
        objects.put(key, data)
    with pytest.raises(StateError) as caught:
        sealed_log(ObjectLog(objects, url), tmp_path / "new").read()
    assert caught.value.code in ("state-corrupt", "decryption-failed")


def test_an_older_log_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    """Also one that is gone, and another state in its place; a machine that has never seen it can't know."""
    objects, memory = MemoryObjects(), tmp_path / "seen"
    url = filled(objects, memory).url
    objects.delete([LOG8])
    log = sealed_log(ObjectLog(objects, url), memory)
    for attempt in (lambda: log.append(8, [entry()]), log.read, lambda: list(log.replay())):
        with pytest.raises(StateError, match="older than this machine has seen it: 8 appends of 9"):
            attempt()
    assert len(sealed_log(ObjectLog(objects, url), tmp_path / "new").read().entries) == 4
    with pytest.raises(StateError, match="0 appends of 9"):
        sealed_log(ObjectLog(MemoryObjects(), url), memory).read()
    replaced = MemoryObjects()
    for number in range(12):
        sealed_log(ObjectLog(replaced, url), tmp_path / "mallory").append(number, [entry()])
    with pytest.raises(StateError, match="another one than this machine has seen") as caught:
        sealed_log(ObjectLog(replaced, url), memory).read()
    assert "state rekey --accept-older" in caught.value.detail

    log.memory.forget()
    assert log.read().next == 8
    log.append(8, [entry("again")])


def test_a_key_that_is_missing_or_another_is_named(tmp_path: Path) -> None:
    objects = MemoryObjects()
    plain = ObjectLog(objects, filled(objects, tmp_path / "seen").url)
    for keys, code, name in (
        ({"k1": OTHER_KEY}, "decryption-failed", "with key 'k1'"),
        ({"k2": KEY}, "missing-state-key", "'k1', which the manifest doesn't declare"),
    ):
        log = sealed_log(plain, tmp_path / "seen", keys)
        for attempt in (log.read, lambda log=log: list(log.replay())):
            with pytest.raises(StateError, match=name) as caught:
                attempt()
            assert caught.value.code == code
    with pytest.raises(StateError, match="the state is encrypted with key 'k1'") as caught:
        ledger_on(plain).state()
    assert caught.value.code == "missing-state-key"


def test_a_passphrase_gives_each_state_its_own_key() -> None:
    keys = EncryptionKeys([StateKey("k1", "s")], lambda _: "correct horse ß")
    sealed = keys.seal({"a": 1}, "one", "plan")
    assert keys.unseal(sealed, "it", "plan") == {"a": 1}
    for other in ({**sealed, "state": "two"}, {**sealed, "data": "%"}, {**sealed, "data": ""}):
        with pytest.raises(StateError, match="cannot decrypt it with key 'k1'"):
            keys.unseal(other, "it", "plan")


def used(ledger: Ledger) -> Ledger:
    """A ledger with a resource, through the given log."""
    ledger.finish(begin(ledger), record(outputs={"host": "10.0.0.7"}, key="k1"))
    return ledger


def test_after_rekey_the_old_key_is_needed_for_the_history_only(tmp_path: Path) -> None:
    """Writers with the new key read what the old one wrote; a move leaves nothing of it."""
    plain, seen = MemoryLog(), tmp_path / "seen"
    used(ledger_on(sealed_log(plain, seen)))
    both = {"k2": OTHER_KEY, "k1": KEY}
    assert rekey(ledger_on(sealed_log(plain, seen, both))) == "k2"

    new = ledger_on(sealed_log(plain, seen, {"k2": OTHER_KEY}))
    assert list(new.state().resources) == [SFT]
    with pytest.raises(StateError, match="'k1', which the manifest doesn't declare"):
        new.history()
    place = MemoryLog("memory:new")
    migrate(
        ledger_on(sealed_log(plain, seen, both)), ledger_on(sealed_log(place, tmp_path / "n", both))
    )
    moved = ledger_on(sealed_log(place, tmp_path / "n", {"k2": OTHER_KEY}))
    assert [row.status for row in moved.history()][-1:] == ["commented"]


@pytest.mark.parametrize("kind", [ObjectLog, BucketLog])
def test_a_plain_state_is_refused_until_rekey_encrypts_it(kind: Log, tmp_path: Path) -> None:
    """Then commands without the key are refused; old entries stay readable until a move."""
    objects = MemoryObjects()

    def opened() -> Ledger:
        return ledger_on(sealed_log(kind(objects, "s3://team/state"), tmp_path / "seen"))

    plain = used(ledger_on(kind(objects, "s3://team/state")))
    for number in range(8):
        plain.note(f"plain {number}")
    before = plain.state()
    for attempt in (opened().state, lambda: list(opened().log.replay())):
        with pytest.raises(StateError, match="is not encrypted, but the manifest declares"):
            attempt()
    rekey(opened())
    assert opened().state().resources == before.resources
    opened().note("after")
    assert [row.status for row in opened().history()][-2:] == ["commented", "commented"]
    with pytest.raises(StateError, match="the state is encrypted with key 'k1'"):
        plain.note("late")
    assert b"after" not in b"".join(data for _, data in raw(objects))

    place = MemoryLog("memory:new")
    migrate(opened(), ledger_on(sealed_log(place, tmp_path / "new")))
    assert "10.0.0.7" not in str(list(place.replay()))
