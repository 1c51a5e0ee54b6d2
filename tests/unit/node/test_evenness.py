"""Streams that advance alike."""

from __future__ import annotations

import random
import threading

from trainctl.node.transfer.evenness import AHEAD_BYTES, Evenness, Stream

STEP = 64 * 1024


def _send(evenness: Evenness, stream: Stream, steps: int) -> None:
    with evenness.under_way(stream):
        for _ in range(steps):
            evenness.advance(stream, STEP)


def test_none_gets_far_ahead_of_the_last() -> None:
    """Whoever is told to go on is within the bound of every other that isn't done."""
    evenness = Evenness(stalled_seconds=60)
    streams = [Stream() for _ in range(3)]
    meanwhile = random.Random(5)
    begun = threading.Barrier(3)
    leads: list[int] = []
    done: set[int] = set()

    def work(number: int) -> None:
        with evenness.under_way(streams[number]):
            begun.wait(20)
            for _ in range(100):
                threading.Event().wait(meanwhile.random() / 2000 * number)
                evenness.advance(streams[number], STEP)
                others = [
                    one.sent for other, one in enumerate(streams) if other not in {number, *done}
                ]
                leads.append(streams[number].sent - min(others, default=streams[number].sent))
            done.add(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [one.sent for one in streams] == [100 * STEP] * 3
    assert max(leads) <= AHEAD_BYTES


def test_one_that_stands_still_holds_up_nobody() -> None:
    """A stream that is sent nothing any more doesn't count, however long it stays."""
    evenness = Evenness(stalled_seconds=0.05)
    with evenness.under_way(Stream()):
        moving = Stream()
        _send(evenness, moving, 50)

    assert moving.sent == 50 * STEP > AHEAD_BYTES


def test_one_that_comes_late_begins_where_the_others_are() -> None:
    """It neither catches up what it never missed nor holds the others up until it has."""
    evenness = Evenness(stalled_seconds=60)
    first, late = Stream(), Stream()
    with evenness.under_way(first):
        for _ in range(100):
            evenness.advance(first, STEP)
        with evenness.under_way(late):
            assert late.sent == first.sent


def test_one_that_goes_on_is_where_it_was() -> None:
    """Between two requests a stream keeps its lead, so that short requests get it no further than long ones."""
    evenness = Evenness(stalled_seconds=60)
    ahead, behind = Stream(), Stream()
    with evenness.under_way(behind):
        _send(evenness, ahead, 10)
        with evenness.under_way(ahead):
            assert ahead.sent - behind.sent == 10 * STEP
