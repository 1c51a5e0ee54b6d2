"""Operations on runs of jobs, and on the data that runs leave.

Begin with ``lookup``: it finds runs in the state and refreshes them. ``status`` and ``logs``
observe runs, ``control`` follows, enters and stops them, ``resume`` and ``reuse`` plan runs from
earlier runs, ``checkpoints`` and ``deploy`` read checkpoints and source code.
"""
