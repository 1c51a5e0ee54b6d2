"""Planning: computes the changes that lead to the desired state. No I/O.

Begin with ``planner.make_plan``, which turns ``values.PlanInputs`` into a ``values.Plan``. ``jobs``, ``resources``
and ``caches`` decide on one resource each. ``changes`` orders and compares changes, ``placement`` chooses nodes,
``weights`` and ``deliveries`` forecast transfers, ``checks`` reports problems, and ``plan_file`` saves plans.
"""
