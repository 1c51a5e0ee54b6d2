"""Applying plans: intent, change and outcome of each step, by dependencies.

Begin with ``engine.ApplyEngine``, which runs steps in parallel. ``walk`` tracks which steps are ready and collects the
result, ``step`` has the interface of handlers for each kind of resource, and ``interrupt`` handles Ctrl-C.
"""
