"""A plan shows what the manifest says of a new job, and counts what it leaves out."""

from __future__ import annotations

from trainctl.model.json_codec import to_json
from trainctl.model.specs.job_spec import JobSpec, RetrySpec
from trainctl.views.plan.rows import added_rows, without_job_defaults


def test_a_job_of_defaults_shows_nothing() -> None:
    """No attribute of a job that sets nothing is shown."""
    assert without_job_defaults(list(added_rows(to_json(JobSpec())))) == []


def test_what_differs_from_its_default_is_shown() -> None:
    """Also if another attribute of the same section has its default."""
    rows = list(added_rows(to_json(JobSpec(project="demo", retry=RetrySpec(max_attempts=3)))))
    assert [row.name for row in without_job_defaults(rows)] == ["project", "retry.max_attempts"]
