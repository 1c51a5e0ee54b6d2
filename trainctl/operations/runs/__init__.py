"""Operations on runs of jobs, and on the data that runs leave.

Begin with ``lookup``: it finds runs in the state and refreshes them. ``status``, ``logs`` and
``follow`` observe runs, ``stop`` ends them, ``resume`` plans runs from earlier runs, and
``checkpoints`` and ``code`` read the checkpoints and the source code of a run.
"""
