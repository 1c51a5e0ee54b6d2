"""Streams that share a link advance evenly."""

from __future__ import annotations

import threading

from trainctl.base.network.even_streams import AHEAD_BYTES, EvenStream, EvenStreams


def send(streams: EvenStreams, stream: EvenStream, count: int, done: threading.Event) -> None:
    streams.advance(stream, count)
    done.set()


def test_a_fast_stream_waits_for_the_slowest() -> None:
    streams, fast, slow = EvenStreams(), EvenStream(), EvenStream()
    done = threading.Event()
    with streams.sending(fast), streams.sending(slow):
        streams.advance(fast, AHEAD_BYTES)
        sender = threading.Thread(target=send, args=(streams, fast, 1, done))
        sender.start()
        assert not done.wait(0.1)
        streams.advance(slow, 1)
        assert done.wait(10)
        sender.join()


def test_a_stream_that_ends_or_stalls_delays_no_other() -> None:
    streams, fast, slow = EvenStreams(stalled_seconds=0.05), EvenStream(), EvenStream()
    with streams.sending(fast):
        with streams.sending(slow):
            streams.advance(fast, 2 * AHEAD_BYTES)
        streams.advance(fast, 2 * AHEAD_BYTES)
        with streams.sending(slow):
            assert slow.sent == fast.sent
