"""Conformance suite of state logs: provide two clients of one empty log.

Provide ``inject``, too, to test what the log does if a write is answered ambiguously.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainctl.base.json import JsonObject
from trainctl.errors import AppendConflict, StateError
from trainctl.plugin_api.state import StateLog

Logs = tuple[StateLog, StateLog]
FAULTS = ("lost", "late", "409", "412", "429", "503", "expired")
"""Faults of a write. ``lost``: done, without an answer. ``late``: no answer, done after the next request. ``412``: done, but
refused by the answer. ``409``, ``429`` and ``503``: not done, to be repeated. ``expired``: refused, as the token has expired."""
Inject = Callable[[str], None]


def entry(text: str = "") -> dict[str, str]:
    """Return an entry; logs read its id only."""
    return {"id": str(uuid.uuid4()), "type": "note", "text": text}


def texts(entries: tuple[JsonObject, ...]) -> list[object]:
    """Return the texts of entries, in order."""
    return [item["text"] for item in entries]


class StateLogConformance(ABC):
    """Inherit, define ``logs``, and pytest runs the rest."""

    appenders = 8
    """Threads that append at once."""
    each = 12
    """Appends of each."""

    @pytest.fixture
    @abstractmethod
    def logs(self) -> Logs:
        """Two clients of one empty log that nothing else uses."""

    @pytest.fixture
    def inject(self) -> Inject | None:
        """Plant one of ``FAULTS`` into the next write of either client; None if that is impossible."""
        return None

    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("before", [0, 1])
    def test_an_ambiguous_append_is_settled(
        self, logs: Logs, inject: Inject | None, fault: str, before: int
    ) -> None:
        """After an unclear answer, repeating the append tells; the batch is there once."""
        if inject is None:
            pytest.skip("faults of writes can't be injected")
        log, other_log = logs
        for number in range(before):
            other_log.append(number, [entry(str(number))])
        log.read()
        mine = [entry("mine")]
        inject(fault)
        for _ in range(3):
            try:
                log.append(before, mine)
                break
            except AppendConflict:
                raise
            except StateError:
                continue
        else:
            pytest.fail("the append was never settled")
        with pytest.raises(AppendConflict):
            other_log.append(before, [entry("late")])
        other_log.append(before + 1, [entry("next")])
        assert texts(log.read().entries)[before:] == ["mine", "next"]

    @pytest.mark.parametrize("fault", FAULTS)
    def test_an_ambiguous_append_is_refused_if_others_won(
        self, logs: Logs, inject: Inject | None, fault: str
    ) -> None:
        """A fault doesn't turn a lost race into a success."""
        if inject is None:
            pytest.skip("faults of writes can't be injected")
        log, other_log = logs
        log.append(0, [entry("first")])
        other_log.append(1, [entry("second")])
        inject(fault)
        for _ in range(3):
            try:
                log.append(1, [entry("late")])
            except AppendConflict:
                break
            except StateError:
                continue
            pytest.fail("the append at a taken position succeeded")
        assert texts(other_log.read().entries) == ["first", "second"]

    def test_a_repeated_append_is_recognised_after_pruning(self, logs: Logs) -> None:
        """A writer can repeat an append however far others went on and pruned."""
        log, other_log = logs
        mine = [entry("mine")]
        log.append(0, mine)
        for number in range(1, 7):
            other_log.append(number, [entry(str(number))])
            log.append(0, mine)
            other_log.snapshot(number + 1, {"at": number + 1})
            log.append(0, mine)
            with pytest.raises(AppendConflict):
                log.append(0, [entry("late")])
        assert [item["text"] for item in log.replay()] == ["mine", *map(str, range(1, 7))]

    def test_new_is_empty(self, logs: Logs) -> None:
        """No entries, no snapshot; the first append is at 0."""
        state = logs[0].read()
        assert (state.entries, state.next, state.snapshot) == ((), 0, None)
        assert list(logs[0].replay()) == []

    def test_what_one_appends_the_other_reads(self, logs: Logs) -> None:
        """Every client reads entries unchanged and in order."""
        log, other_log = logs
        batch: list[JsonObject] = [
            entry("a"),
            {**entry("ü\udcff\n"), "deep": {"x": [1, 2.5, None, True]}},
        ]
        log.append(0, batch)
        other_log.append(1, [entry("c")])
        state = log.read()
        assert list(state.entries[:2]) == batch
        assert texts(state.entries)[2] == "c"
        assert state.next == 2

    def test_reading_from_a_position(self, logs: Logs) -> None:
        """Exactly the later entries are returned; none at the head."""
        log, other_log = logs
        for number in range(3):
            log.append(number, [entry(str(number))])
        assert texts(other_log.read(1).entries) == ["1", "2"]
        assert other_log.read(1).next == 3
        assert (other_log.read(3).entries, other_log.read(3).next) == ((), 3)

    def test_a_taken_position_is_refused(self, logs: Logs) -> None:
        """The second append at a position is refused and changes nothing."""
        log, other_log = logs
        log.append(0, [entry("first")])
        with pytest.raises(AppendConflict):
            other_log.append(0, [entry("second")])
        assert texts(log.read().entries) == ["first"]
        other_log.append(1, [entry("second")])
        assert texts(log.read().entries) == ["first", "second"]

    def test_a_gap_is_an_error(self, logs: Logs) -> None:
        """Appending beyond the end is an error, but no conflict."""
        with pytest.raises(StateError) as caught:
            logs[0].append(3, [entry()])
        assert not isinstance(caught.value, AppendConflict)
        assert logs[1].read().next == 0

    def test_an_entry_needs_an_id(self, logs: Logs) -> None:
        """Empty batches and entries without an id are refused."""
        for batch in ([], [{"type": "note"}], [entry(), {"id": ""}]):
            with pytest.raises(StateError):
                logs[0].append(0, batch)
        assert logs[1].read().next == 0

    def test_ones_own_append_is_recognised(self, logs: Logs) -> None:
        """Repeating an append, whose response was lost, succeeds and adds nothing."""
        log, other_log = logs
        batch = [entry("mine"), entry("too")]
        log.append(0, batch)
        log.append(0, batch)
        other_log.append(0, batch)
        assert texts(log.read().entries) == ["mine", "too"]

    def test_racing_appenders_lose_nothing(self, logs: Logs) -> None:
        """Each position has one winner; no entry is lost or out of order."""
        start = threading.Barrier(self.appenders)

        def run(racer: int) -> None:
            log, position = logs[racer % 2], 0
            start.wait()
            for number in range(self.each):
                while True:
                    position = log.read(position).next
                    try:
                        log.append(position, [entry(f"{racer}:{number}")])
                        break
                    except AppendConflict:
                        continue

        with ThreadPoolExecutor(self.appenders) as pool:
            list(pool.map(run, range(self.appenders)))
        state = logs[0].read()
        assert state.next == self.appenders * self.each
        for racer in range(self.appenders):
            mine = [text for text in texts(state.entries) if str(text).startswith(f"{racer}:")]
            assert mine == [f"{racer}:{number}" for number in range(self.each)]

    def test_a_snapshot_stands_for_what_is_before_it(self, logs: Logs) -> None:
        """Reading from the start returns the newest snapshot and later entries."""
        log, other_log = logs
        for number in range(5):
            log.append(number, [entry(str(number))])
        log.snapshot(3, {"sum": 3})
        state = other_log.read()
        assert state.snapshot == {"sum": 3}
        assert texts(state.entries) == ["3", "4"]
        assert state.next == 5
        other_log.append(5, [entry("5")])
        assert texts(log.read(5).entries) == ["5"]

    def test_an_older_snapshot_changes_nothing(self, logs: Logs) -> None:
        """A late, older snapshot doesn't replace a newer one."""
        log, other_log = logs
        for number in range(4):
            log.append(number, [entry(str(number))])
        log.snapshot(4, {"at": 4})
        other_log.snapshot(2, {"at": 2})
        assert log.read().snapshot == {"at": 4}
        assert log.read().next == 4

    def test_a_snapshot_of_what_is_not_there_is_an_error(self, logs: Logs) -> None:
        """Snapshots beyond the end are refused."""
        with pytest.raises(StateError):
            logs[0].snapshot(2, {})
        assert logs[1].read().snapshot is None

    def test_old_positions_stay_refused(self, logs: Logs) -> None:
        """Appends at pruned positions are refused, and replay still has all entries."""
        log, other_log = logs
        for number in range(12):
            log.append(number, [entry(str(number))])
            if number % 3 == 2:
                log.snapshot(number + 1, {"at": number + 1})
        for position in range(12):
            with pytest.raises(AppendConflict):
                other_log.append(position, [entry("late")])
        assert other_log.read().snapshot == {"at": 12}
        assert [item["text"] for item in other_log.replay()] == [str(n) for n in range(12)]

    def test_a_slow_reader_gets_the_whole_state(self, logs: Logs) -> None:
        """A reader gets every later entry or, if pruned, the complete state."""
        log, other_log = logs
        for number in range(12):
            log.append(number, [entry(str(number))])
            if number % 3 == 2:
                log.snapshot(number + 1, {"at": number + 1})
        for position in range(1, 13):
            state = other_log.read(position)
            assert state.next == 12
            if state.is_full_state:
                assert state.snapshot == {"at": 12}
                assert state.entries == ()
            else:
                assert texts(state.entries) == [str(number) for number in range(position, 12)]

    def test_readers_and_pruners_at_once(self, logs: Logs) -> None:
        """During appends, snapshots and pruning, readers always get a complete state."""
        log, other_log = logs
        done = threading.Event()

        def write() -> None:
            try:
                for number in range(60):
                    log.append(number, [entry(str(number))])
                    if number % 5 == 4:
                        log.snapshot(number + 1, {"count": number + 1})
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            last = 0
            while not done.is_set():
                state = other_log.read()
                base = state.snapshot["count"] if state.snapshot else 0
                assert isinstance(base, int)
                assert texts(state.entries) == [str(n) for n in range(base, state.next)]
                assert state.next >= last
                last = state.next
                assert [item["text"] for item in other_log.replay()][:last] == [
                    str(n) for n in range(last)
                ]
            writing.result()
        assert other_log.read().next == 60
