"""Pages of ``trainctl ui`` with 100 jobs and 2,000 runs, and of a run with 20 charts of 20,000 points.

    python -m tests.benchmarks.ui_pages [--jobs 100] [--runs 20] [--charts 20] [--points 20000]

The first page is measured from opening the workspace on, by the clock; that of the run as its time for each chart. Exits 1 above
a limit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.projects.many_runs import record_points, record_runs
from tests.support.projects.project import project
from tests.support.servers.pages import site_of
from trainctl.ui.runs import jobs_page, run_page

FIRST_PAGE, CHART = 1.0, 0.3
"""Limits in seconds."""


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--runs", type=int, default=20, help="of each job")
    parser.add_argument("--charts", type=int, default=20)
    parser.add_argument("--points", type=int, default=20_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="trainctl-ui-") as folder,
        project(Path(folder)) as made,
    ):
        run = record_runs(made, options.jobs, options.runs)
        record_points(made, run, options.charts, options.points)
        site = site_of(made, 0.4)
        first = _seconds(site.start)
        again = _seconds(site.start)
        jobs = _seconds(lambda: jobs_page(site, "", {}))
        site_of_run = site_of(made)
        one = _seconds(lambda: run_page(site_of_run, run, {}))
        refreshed = _seconds(lambda: run_page(site_of_run, run, {}))
        site.close()
        site_of_run.close()
    total = options.jobs * options.runs
    print(
        f"{options.jobs} jobs, {total:,} runs: first page {first:.2f} s, ratio to the limit of {FIRST_PAGE} s "
        f"{first / FIRST_PAGE:.2f} (limit 1); again {again:.2f} s, all runs {jobs:.2f} s"
    )
    print(
        f"{options.charts} charts of {options.points:,} points: page {one:.2f} s, refreshed {refreshed:.2f} s, a chart "
        f"{one / options.charts:.3f} s, ratio to the limit of {CHART} s {one / options.charts / CHART:.2f} (limit 1)"
    )
    return 0 if first <= FIRST_PAGE and one / options.charts <= CHART else 1


def _seconds(act: Callable[[], str]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


if __name__ == "__main__":
    raise SystemExit(main())
