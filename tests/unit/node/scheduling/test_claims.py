"""Claims by abstract sockets: exclusive, all or none, released by the end of their holder."""

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


def test_a_name_has_one_holder_until_its_release(names: list[str]) -> None:
    first, second = Claims(), Claims()

    assert first.acquire(names[0])
    assert not second.acquire(names[0])
    assert is_held(names[0])
    first.release()
    assert not is_held(names[0])
    assert second.acquire(names[0])
    second.release()


def test_several_names_are_claimed_all_or_none(names: list[str]) -> None:
    first, second = Claims(), Claims()
    first.acquire(names[1])

    assert second.acquire_some(names, 3) == []
    assert not is_held(names[0])
    assert second.acquire_some(names, 2) == [names[0], names[2]]
    first.release()
    second.release()


def test_a_claim_vanishes_with_its_holder(names: list[str]) -> None:
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        Claims().acquire(names[0])  # released by the garbage collector
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


@pytest.mark.parametrize("released", [0, 1])
def test_a_release_of_any_name_ends_the_wait(names: list[str], released: int) -> None:
    """Long before its time limit; a name that is free already ends it at once."""
    claims = [Claims(), Claims()]
    for claim, name in zip(claims, names, strict=False):
        claim.acquire(name)
    waiter = threading.Thread(target=wait_for_release, args=(names[:2], 3600.0), daemon=True)
    waiter.start()

    claims[released].release()
    waiter.join(60)

    assert not waiter.is_alive()
    claims[1 - released].release()
    wait_for_release(names, 3600.0)
