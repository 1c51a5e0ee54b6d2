"""Conformance suite of state logs: provide two clients of one empty log."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainctl.base.json import JsonObject
from trainctl.errors import AppendConflict, StateError
from trainctl.plugin_api.state import StateLog

APPENDERS = 8
EACH = 12

Logs = tuple[StateLog, StateLog]


def entry(text: str = "") -> dict[str, str]:
    """Return an entry; logs read its id only."""
    return {"id": str(uuid.uuid4()), "type": "note", "text": text}


def texts(entries: tuple[JsonObject, ...]) -> list[object]:
    """Return the texts of entries, in order."""
    return [one["text"] for one in entries]


class StateLogConformance(ABC):
    """Inherit, define ``logs``, and pytest runs the rest."""

    @pytest.fixture
    @abstractmethod
    def logs(self) -> Logs:
        """Two clients of one empty log that nothing else uses."""

    def test_new_is_empty(self, logs: Logs) -> None:
        """Nothing was appended: no entries, no snapshot, and the first append belongs at 0."""
        found = logs[0].read()
        assert (found.entries, found.next, found.snapshot) == ((), 0, None)
        assert list(logs[0].replay()) == []

    def test_what_one_appends_the_other_reads(self, logs: Logs) -> None:
        """Entries come back as they were, in order, to everyone."""
        one, other = logs
        batch: list[JsonObject] = [
            entry("a"),
            {**entry("ü\udcff\n"), "deep": {"x": [1, 2.5, None, True]}},
        ]
        one.append(0, batch)
        other.append(1, [entry("c")])
        found = one.read()
        assert list(found.entries[:2]) == batch
        assert texts(found.entries)[2] == "c"
        assert found.next == 2

    def test_reading_from_a_position(self, logs: Logs) -> None:
        """From a position on: exactly what was appended since, and nothing at the head."""
        one, other = logs
        for number in range(3):
            one.append(number, [entry(str(number))])
        assert texts(other.read(1).entries) == ["1", "2"]
        assert other.read(1).next == 3
        assert (other.read(3).entries, other.read(3).next) == ((), 3)

    def test_a_taken_position_is_refused(self, logs: Logs) -> None:
        """The second at a position is refused and changes nothing; at the end it succeeds."""
        one, other = logs
        one.append(0, [entry("first")])
        with pytest.raises(AppendConflict):
            other.append(0, [entry("second")])
        assert texts(one.read().entries) == ["first"]
        other.append(1, [entry("second")])
        assert texts(one.read().entries) == ["first", "second"]

    def test_a_gap_is_an_error(self, logs: Logs) -> None:
        """Appending beyond the end would hide what comes between: an error, and not one to read on from."""
        with pytest.raises(StateError) as caught:
            logs[0].append(3, [entry()])
        assert not isinstance(caught.value, AppendConflict)
        assert logs[1].read().next == 0

    def test_an_entry_needs_an_id(self, logs: Logs) -> None:
        """No batch is empty and no entry without an id, as its writer could not recognise it."""
        for batch in ([], [{"type": "note"}], [entry(), {"id": ""}]):
            with pytest.raises(StateError):
                logs[0].append(0, batch)
        assert logs[1].read().next == 0

    def test_ones_own_append_is_recognised(self, logs: Logs) -> None:
        """Appending the very same entries again at their place succeeds and adds nothing: the answer had been lost."""
        one, other = logs
        batch = [entry("mine"), entry("too")]
        one.append(0, batch)
        one.append(0, batch)
        other.append(0, batch)
        assert texts(one.read().entries) == ["mine", "too"]

    def test_racing_appenders_lose_nothing(self, logs: Logs) -> None:
        """Many threads, two clients: each position has one winner, and what each appended is there once and in its order."""
        start = threading.Barrier(APPENDERS)

        def run(racer: int) -> None:
            log, position = logs[racer % 2], 0
            start.wait()
            for number in range(EACH):
                while True:
                    position = log.read(position).next
                    try:
                        log.append(position, [entry(f"{racer}:{number}")])
                        break
                    except AppendConflict:
                        continue

        with ThreadPoolExecutor(APPENDERS) as pool:
            list(pool.map(run, range(APPENDERS)))
        found = logs[0].read()
        assert found.next == APPENDERS * EACH
        for racer in range(APPENDERS):
            mine = [text for text in texts(found.entries) if str(text).startswith(f"{racer}:")]
            assert mine == [f"{racer}:{number}" for number in range(EACH)]

    def test_a_snapshot_stands_for_what_is_before_it(self, logs: Logs) -> None:
        """Reading from the start begins at the newest snapshot; what came after it follows; the position goes on."""
        one, other = logs
        for number in range(5):
            one.append(number, [entry(str(number))])
        one.snapshot(3, {"sum": 3})
        found = other.read()
        assert found.snapshot == {"sum": 3}
        assert texts(found.entries) == ["3", "4"]
        assert found.next == 5
        other.append(5, [entry("5")])
        assert texts(one.read(5).entries) == ["5"]

    def test_an_older_snapshot_changes_nothing(self, logs: Logs) -> None:
        """A slow snapshotter can't turn readers back."""
        one, other = logs
        for number in range(4):
            one.append(number, [entry(str(number))])
        one.snapshot(4, {"at": 4})
        other.snapshot(2, {"at": 2})
        assert one.read().snapshot == {"at": 4}
        assert one.read().next == 4

    def test_a_snapshot_of_what_is_not_there_is_an_error(self, logs: Logs) -> None:
        """Nobody can have folded what was never appended."""
        with pytest.raises(StateError):
            logs[0].snapshot(2, {})
        assert logs[1].read().snapshot is None

    def test_old_positions_stay_refused(self, logs: Logs) -> None:
        """However many snapshots pruned it: a writer with an old view is refused, and replay still has everything."""
        one, other = logs
        for number in range(12):
            one.append(number, [entry(str(number))])
            if number % 3 == 2:
                one.snapshot(number + 1, {"at": number + 1})
        for position in range(12):
            with pytest.raises(AppendConflict):
                other.append(position, [entry("late")])
        assert other.read().snapshot == {"at": 12}
        assert [one_entry["text"] for one_entry in other.replay()] == [str(n) for n in range(12)]

    def test_a_slow_reader_gets_the_whole_state(self, logs: Logs) -> None:
        """Whoever follows from a position sees every entry since; where those were pruned, the whole state, said so."""
        one, other = logs
        for number in range(12):
            one.append(number, [entry(str(number))])
            if number % 3 == 2:
                one.snapshot(number + 1, {"at": number + 1})
        for position in range(1, 13):
            found = other.read(position)
            assert found.next == 12
            if found.is_full_state:
                assert found.snapshot == {"at": 12}
                assert found.entries == ()
            else:
                assert texts(found.entries) == [str(number) for number in range(position, 12)]

    def test_readers_and_pruners_at_once(self, logs: Logs) -> None:
        """While one appends, snapshots and prunes, the other always reads a state that has everything up to some position."""
        one, other = logs
        done = threading.Event()

        def write() -> None:
            try:
                for number in range(60):
                    one.append(number, [entry(str(number))])
                    if number % 5 == 4:
                        one.snapshot(number + 1, {"count": number + 1})
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            last = 0
            while not done.is_set():
                found = other.read()
                base = found.snapshot["count"] if found.snapshot else 0
                assert isinstance(base, int)
                assert texts(found.entries) == [str(n) for n in range(base, found.next)]
                assert found.next >= last
                last = found.next
                assert [one_entry["text"] for one_entry in other.replay()][:last] == [
                    str(n) for n in range(last)
                ]
            writing.result()
        assert other.read().next == 60
