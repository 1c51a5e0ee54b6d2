"""Finding runs in a state."""

from __future__ import annotations

import pytest

from trainctl.errors import UsageError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address
from trainctl.model.run import RunRecord
from trainctl.operations.jobs.runs import find_run, job_address, newest_runs

SFT, EVAL, IDLE = map(Address.parse, ("job.sft", "job.eval", "job.idle"))


def job(address: Address, *ids: str) -> RecordedResource:
    """A recorded job with runs."""
    runs = [RunRecord(each, number, each * 2).to_json() for number, each in enumerate(ids, 1)]
    return RecordedResource(address, "local", {"project": "demo"}, {"runs": runs})


STATE = State(
    resources={
        one.address: one
        for one in (
            job(SFT, "aaa", "bbb"),
            job(EVAL, "ccc"),
            RecordedResource(IDLE, "local", {}, {}),
        )
    }
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("sft", SFT),
        ("job.sft", SFT),
        ('sweep["lr=1e-5"]', Address.parse('job.sweep["lr=1e-5"]')),
        ("job.job.x", Address.parse("job.job.x")),
        ("sweep[lr=1e-5]", Address.parse('job.sweep["lr=1e-5"]')),
        ('job.sweep[a=b[0],c="x"]', Address.parse('job.sweep["a=b[0],c=\\"x\\""]')),
    ],
)
def test_a_job_may_be_named_shortly(text: str, address: Address) -> None:
    """With its kind or without, and with a key whose quotes the shell took."""
    assert job_address(text) == address


def test_what_does_not_run_is_said_to_be_no_job() -> None:
    """And is not looked for among the jobs."""
    with pytest.raises(UsageError, match=r"weights\.w is not a job"):
        job_address("weights.w")


def test_of_a_matrix_the_only_job_is_meant_and_what_is_not_there_is_guessed() -> None:
    """One that is left needs no key; of several, or of a name that is nearly right, it is said what there is."""
    only, other = (Address.parse(f'job.fit["lr={lr}"]') for lr in (1, 2))
    one = State(resources={only: job(only, "ddd")})
    assert find_run(one, only.group).record.id == "ddd"
    with pytest.raises(UsageError) as caught:
        find_run(one, other)
    assert caught.value.detail == f"Jobs of job.fit: {only}."
    with pytest.raises(UsageError) as caught:
        find_run(one, Address.parse("job.fti"))
    assert caught.value.detail == "Did you mean job.fit?"
    both = State(resources={only: job(only, "ddd"), other: job(other, "eee")})
    with pytest.raises(UsageError, match="has 2 jobs"):
        find_run(both, only.group)


def test_what_was_forgotten_is_found_where_nothing_is_recorded() -> None:
    """A recorded job comes first, and of a matrix what is left of it."""
    one, two, three = (Address.parse(f'job.fit["lr={lr}"]') for lr in (1, 2, 3))
    left = State(
        resources={one: job(one, "aaa")},
        forgotten={two: job(two, "bbb"), three: job(three, "ccc"), SFT: job(SFT, "ddd")},
    )
    found = [find_run(left, each).record.id for each in (one, two, one.group, SFT)]
    assert found == ["aaa", "bbb", "aaa", "ddd"]
    assert [run.record.id for run in newest_runs(left)] == ["aaa"]
    with pytest.raises(UsageError, match="has 2 jobs") as caught:
        find_run(State(forgotten=left.forgotten), one.group)
    assert f"Jobs: {two}, {three}." in caught.value.detail


def test_what_is_no_address_is_refused() -> None:
    """As wrong usage, with how to write it."""
    with pytest.raises(UsageError, match="is not an address"):
        job_address("job.a b")


@pytest.mark.parametrize(
    ("run", "found"), [(None, "bbb"), ("aaa", "aaa"), ("1", "aaa"), ("2", "bbb")]
)
def test_a_run_by_id_by_number_or_the_newest(run: str | None, found: str) -> None:
    """The newest where none is named."""
    assert find_run(STATE, SFT, run).record.id == found


@pytest.mark.parametrize(
    ("address", "run", "said"),
    [
        (Address.parse("job.gone"), None, "In the state: job.eval, job.idle, job.sft."),
        (IDLE, None, "trainctl apply"),
        (SFT, "zzz", "Runs: 1 (aaa), 2 (bbb)."),
    ],
)
def test_what_there_is_not_is_said(address: Address, run: str | None, said: str) -> None:
    """With what there is instead."""
    with pytest.raises(UsageError) as caught:
        find_run(STATE, address, run)
    assert said in caught.value.detail


def test_the_newest_run_of_each_job() -> None:
    """Jobs that never ran have none."""
    assert [run.record.id for run in newest_runs(STATE)] == ["ccc", "bbb"]
