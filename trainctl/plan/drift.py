"""Recorded resources that a look found different, or gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainctl.model.address import Kind
from trainctl.plan.diff import plain
from trainctl.plan.subject import Subject
from trainctl.plan.values import Drift
from trainctl.spi.provider import Presence


def drifted(subjects: Iterable[Subject]) -> Iterator[Drift]:
    """What is not as recorded. Of jobs only those that vanished: that a run goes on and ends is its nature."""
    for subject in subjects:
        found, recorded = subject.observed, subject.recorded
        if found is None or recorded is None:
            continue
        before = {**subject.before, **plain(recorded.outputs)}
        if found.presence is Presence.GONE:
            yield Drift(subject.address, before, None, found.detail)
        elif found.presence is Presence.PRESENT and subject.address.kind is not Kind.JOB:
            after = {**before, **plain(found.outputs)}
            if after != before:
                yield Drift(subject.address, before, after, found.detail)
