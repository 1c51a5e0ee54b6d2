"""Defaults of jobs, so that a plan shows what the manifest says and hides what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from trainctl.model.json_codec import to_json
from trainctl.model.specs.job_spec import JobSpec
from trainctl.views.plan.rows import AttributeRow, Path, added_rows


def without_job_defaults(rows: Sequence[AttributeRow]) -> list[AttributeRow]:
    """Return the rows of a new job without those that hold a default."""
    defaults = _job_defaults()
    return [row for row in rows if row.path not in defaults or defaults[row.path] != row.after]


@cache
def _job_defaults() -> dict[Path, Any]:
    return {row.path: row.after for row in added_rows(to_json(JobSpec()))}
