"""Claims by abstract sockets: exclusive, all or none, gone with their holder, and their release is told."""

from __future__ import annotations

import os
import signal
import threading
import uuid

import pytest

from trainctl.node.scheduling.claims import Claims, is_held, wait_for_release


@pytest.fixture
def names() -> list[str]:
    """Three names that nobody else uses."""
    return [f"test/{uuid.uuid4()}" for _ in range(3)]


def test_a_name_has_one_holder(names: list[str]) -> None:
    """Until it is given up."""
    first, second = Claims(), Claims()

    assert first.acquire(names[0])
    assert not second.acquire(names[0])
    assert is_held(names[0])
    first.release()
    assert not is_held(names[0])
    assert second.acquire(names[0])
    second.release()


def test_all_or_none(names: list[str]) -> None:
    """Who can't get as many as he wants holds nothing; who can gets the first that are free."""
    first, second = Claims(), Claims()
    first.acquire(names[1])

    assert second.acquire_some(names, 3) == []
    assert not is_held(names[0])
    assert second.acquire_some(names, 2) == [names[0], names[2]]
    first.release()
    second.release()


def test_a_claim_vanishes_with_its_holder(names: list[str]) -> None:
    """However that ends; a child that kept the descriptor holds it until it ends, too."""
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        Claims().acquire(names[0])  # collected at once: nothing is held by who forgets it
        claims = Claims()
        claims.acquire(names[1])
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    assert not is_held(names[0])
    assert is_held(names[1])

    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)

    assert not is_held(names[1])
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("at", [0, 1])
def test_a_release_wakes_who_waits_for_it(names: list[str], at: int) -> None:
    """Of any of the names, long before the time is over."""
    claims = [Claims(), Claims()]
    for one, name in zip(claims, names, strict=False):
        one.acquire(name)
    waiter = threading.Thread(target=wait_for_release, args=(names[:2], 3600.0), daemon=True)
    waiter.start()

    claims[at].release()
    waiter.join(60)

    assert not waiter.is_alive()
    claims[1 - at].release()


def test_nobody_waits_for_what_is_free(names: list[str]) -> None:
    """A name that was given up in between ends the wait at once."""
    waiter = threading.Thread(target=wait_for_release, args=(names, 3600.0), daemon=True)
    waiter.start()

    waiter.join(60)

    assert not waiter.is_alive()
