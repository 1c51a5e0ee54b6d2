"""Pages of ``trainctl ui`` with 100 jobs and 2,000 runs, and of a run with 20 charts of 20,000 points, in Chromium.

    python -m tests.benchmarks.ui_pages [--jobs 100] [--runs 20] [--charts 20] [--points 20000]

Each page is measured in the browser, from the request until it is drawn. The first page is that of a server that has answered
nothing yet; the page of the run is divided by its charts. Exits 1 above a limit. Needs chromium-headless-shell.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.support.node_program.nodes import wait_for
from tests.support.projects.many_runs import record_points, record_runs
from tests.support.projects.project import project
from tests.support.servers.pages import Visit, chromium, served, site_of, visit
from trainctl.ledger.usage import run_usage

FIRST_PAGE, CHART = 1.0, 0.3
"""Limits in seconds."""
PATIENCE = 0.3


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
        site = site_of(made, PATIENCE)
        site.fold(run_usage)  # as the command does before it prints the URL
        with served(site) as url, chromium() as browser:
            shown = visit(browser.new_context(), url.replace("/?", "/missing?"))
            seconds = [
                _seconds(shown, path) for path in ("", "", "jobs", f"runs/{run}", f"runs/{run}")
            ]
            wait_for(lambda: _charts(shown, f"runs/{run}") == options.charts)
            one = _seconds(shown, f"runs/{run}")
    first, again, jobs = seconds[:3]
    total, chart = options.jobs * options.runs, one / options.charts
    print(
        f"{options.jobs} jobs, {total:,} runs: first page {first:.2f} s, ratio to the limit of {FIRST_PAGE} s "
        f"{first / FIRST_PAGE:.2f} (limit 1); again {again:.2f} s, newest runs of all jobs {jobs:.2f} s"
    )
    print(
        f"{options.charts} charts of {options.points:,} points: page {one:.2f} s, a chart {chart:.3f} s, ratio to the limit of "
        f"{CHART} s {chart / CHART:.2f} (limit 1)"
    )
    return 0 if first <= FIRST_PAGE and chart <= CHART else 1


def _seconds(shown: Visit, path: str) -> float:
    began = time.monotonic()
    shown.open(path)
    return time.monotonic() - began


def _charts(shown: Visit, path: str) -> int:
    return shown.open(path).locator(".chart svg[role=img]").count()


if __name__ == "__main__":
    raise SystemExit(main())
