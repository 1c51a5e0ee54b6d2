"""The state: an append-only log of entries that is replayed.

Begin with ``ledger.Ledger``, which records intents and outcomes of changes and holds locks. ``entries`` are the
records of the log, ``reducer`` replays them to a ``state.State``, ``codec`` converts the state to JSON. ``commit``
appends entries and redacts secrets, ``leases`` renews locks, ``history`` lists past changes.
"""
