"""Runs of jobs: start, query, stop and repeat them.

Begin with `run_control.RunControl`, which queries and stops runs that exist; `run_status` merges
the statuses of their ranks into the record. `launch` starts the ranks of a new run, `batch_runs`
submits it to a scheduler. `previous_runs` finds and repeats earlier runs, `blocking_runs` finds
those that a new run waits for.
"""
