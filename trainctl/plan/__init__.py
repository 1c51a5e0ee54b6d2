"""Planning: computes the changes that lead to the desired state. No I/O.

Begin with ``planner.make_plan``, which turns ``values.PlanInputs`` into a ``values.Plan``. ``jobs``, ``resources``
and ``caches`` decide on one resource each, from its ``resource_context``; ``runs`` handles interrupted attempts.
``graph`` orders changes, ``placement`` chooses nodes, ``transfers`` forecasts deliveries, ``validation`` reports
problems, and ``plan_file`` saves plans.
"""
