"""The log in a bucket: how many requests it makes, what it does without a tail, and which server it refuses."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from typing import Any

import pytest

from tests.support.storage.ledgers import ledger_on, record
from trainctl.base.objects import ObjectStore
from trainctl.errors import AppendConflict, StateError
from trainctl.ledger.ledger import IntentRequest
from trainctl.model.address import Address
from trainctl.store.objects import MemoryObjects
from trainctl_state import BucketLog, bucket_log, open_bucket


def entry(text: object = "") -> dict[str, str]:
    return {"id": str(uuid.uuid4()), "text": str(text)}


class Counted:
    """Counts the requests to a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.requests[name] += 1
        return getattr(self._store, name)


def test_a_first_append_proves_the_server() -> None:
    class Replacing(MemoryObjects):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            self.put(key, data)
            return True

    store = Replacing()
    with pytest.raises(StateError, match="can't hold a state") as caught:
        open_bucket("s3://b/x", store).append(0, [entry()])
    assert caught.value.code == "state-store-unsafe"
    assert [stat.key for stat in store.list("")] == ["probe.json"]


@pytest.mark.parametrize("length", [8, 199, 1000])
def test_requests_of_appends_and_of_a_plan(length: int) -> None:
    """Through a ledger: two an append in the mean, and ten of a command that only reads, whatever the history."""
    store = Counted(MemoryObjects())
    ledger = ledger_on(BucketLog(store, "x"))
    address = Address.parse("project.a")
    for _ in range(length // 2):
        intent = ledger.begin(IntentRequest(address, "update", "local", "k", {}))
        ledger.finish(intent, record(address))
    ledger.flush()
    assert sum(store.requests.values()) <= max(2 * length, 24)
    store.requests.clear()
    reader = ledger_on(BucketLog(store, "x"))
    assert reader.state() == reader.state() == ledger.known()
    assert sum(store.requests.values()) <= 10
    assert store.requests["list"] == 1


def test_a_tail_is_only_a_hint() -> None:
    """Whether it is missing, old, damaged, or begins at a snapshot that is gone: the state is read, and is the same."""
    store = MemoryObjects()
    log = BucketLog(store, "x")
    tails: list[bytes | None] = [
        None,
        b"{",
        b'{"version": 1}',
        b'{"version": 1, "start": 9, "batches": [[]]}',
    ]
    for number in range(40):
        log.append(number, [entry(number)])
        if number % 10 == 9:
            log.snapshot(number + 1, {"at": number + 1})
        tails.append(store.get("tail.json"))
    for tail in tails:
        store.delete(["tail.json"])
        if tail is not None:
            store.put("tail.json", tail)
        data = BucketLog(store, "x").read()
        base = data.snapshot["at"] if data.snapshot else 0
        assert isinstance(base, int)
        assert [entry["text"] for entry in data.entries] == [str(n) for n in range(base, 40)]
        assert data.next == 40


def test_history_is_packed_once_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_log, "PACK_AFTER", 6)
    store = MemoryObjects()
    log = BucketLog(store, "x")
    for number in range(15):
        log.append(number, [entry(number)])
        if number % 4 == 3:
            log.snapshot(number + 1, {"at": number + 1})
    packs = [json.loads(store.get(stat.key) or b"") for stat in store.list("history")]
    assert [(pack["first"], pack["next"]) for pack in packs] == [(0, 8)]
    assert all(stat.size for stat in store.list("log"))
    assert [entry["text"] for entry in log.replay()] == [str(number) for number in range(15)]
    with pytest.raises(AppendConflict):
        BucketLog(store, "x").append(3, [entry("late")])
