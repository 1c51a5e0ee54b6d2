"""Finding runs in a state."""

from __future__ import annotations

import pytest

from tests.support.cases import cases
from trainctl.errors import UsageError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address
from trainctl.model.run import RunRecord
from trainctl.operations.runs.lookup import find_run, job_address, newest_runs

SFT, EVAL, IDLE = map(Address.parse, ("job.sft", "job.eval", "job.idle"))


def job(address: Address, *ids: str) -> RecordedResource:
    """A recorded job with runs."""
    runs = [RunRecord(each, number, each * 2).to_json() for number, each in enumerate(ids, 1)]
    return RecordedResource(address, "local", {"project": "demo"}, {"runs": runs})


STATE = State(
    resources={
        value.address: value
        for value in (
            job(SFT, "aaa", "bbb"),
            job(EVAL, "ccc"),
            RecordedResource(IDLE, "local", {}, {}),
        )
    }
)


@pytest.mark.parametrize("case", cases("operations/job_names"))
def test_a_job_may_be_named_shortly(case: list[str]) -> None:
    """With its kind or without, and with a key whose quotes the shell removed."""
    text, address = case
    assert job_address(text) == Address.parse(address)


def test_a_name_that_is_no_job_is_refused() -> None:
    with pytest.raises(UsageError, match=r"weights\.w is not a job"):
        job_address("weights.w")
    with pytest.raises(UsageError, match="is not an address"):
        job_address("job.a b")


FIT = [Address.parse(f'job.fit["lr={lr}"]') for lr in (1, 2, 3)]


def test_a_group_means_its_only_job() -> None:
    """If there are several, or the name is nearly right, the error lists them."""
    only = State(resources={FIT[0]: job(FIT[0], "ddd")})
    assert find_run(only, FIT[0].group).record.id == "ddd"
    with pytest.raises(UsageError) as caught:
        find_run(only, FIT[1])
    assert caught.value.detail == f"Jobs of job.fit: {FIT[0]}."
    with pytest.raises(UsageError) as caught:
        find_run(only, Address.parse("job.fti"))
    assert caught.value.detail == "Did you mean job.fit?"
    both = State(resources={address: job(address, "ddd") for address in FIT[:2]})
    with pytest.raises(UsageError, match="has 2 jobs"):
        find_run(both, FIT[0].group)


def test_a_run_by_id_by_number_or_the_newest() -> None:
    runs = [find_run(STATE, SFT, run).record.id for run in (None, "aaa", "1", "2")]
    assert runs == ["bbb", "aaa", "aaa", "bbb"]
    assert [run.record.id for run in newest_runs(STATE)] == ["ccc", "bbb"]


@pytest.mark.parametrize(
    ("address", "run", "detail"),
    [
        (Address.parse("job.gone"), None, "In the state: job.eval, job.idle, job.sft."),
        (IDLE, None, "trainctl apply"),
        (SFT, "zzz", "Runs: 1 (aaa), 2 (bbb)."),
    ],
)
def test_an_unknown_run_is_refused_with_the_known_ones(
    address: Address, run: str | None, detail: str
) -> None:
    with pytest.raises(UsageError) as caught:
        find_run(STATE, address, run)
    assert detail in caught.value.detail
