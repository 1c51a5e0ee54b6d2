"""Runs of jobs: start, query, stop and repeat them.

Begin with `run_control.RunControl`, which queries and stops runs that exist, and merges the
reports of their ranks into the record. `launch` starts the ranks of a new run, `batch_runs` submits
it to a scheduler. `previous_runs` finds earlier runs, to repeat them or because a new run waits for
them.
"""
