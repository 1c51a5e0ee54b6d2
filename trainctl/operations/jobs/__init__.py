"""Use cases about jobs, their runs and what runs leave behind.

``runs`` finds a run in the state and refreshes it; most others begin there. ``status``, ``logs`` and ``follow`` observe
runs, ``stop`` ends them, ``resume`` plans one that starts from an earlier one, and ``checkpoints`` and ``code`` read
what a run wrote and ran. Each module holds one command or a few close ones.
"""
