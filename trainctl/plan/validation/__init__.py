"""Whether a plan may be applied, and what in it deserves a warning. Pure, as all of planning is.

``checks`` are those of the product, ``hosts`` what jobs need of the machines that they are placed on, and ``policies``
the limits that users declare. Each takes planned values and returns diagnostics; ``plan.planner`` calls them last.
"""
