"""Validation of plans: errors that forbid an apply, and warnings.

``checks`` has general checks and the policies of users, ``hosts`` the requirements of jobs on their nodes. The
functions take planned values and yield diagnostics; ``plan.planner`` calls them last.
"""
