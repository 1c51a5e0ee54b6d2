"""Value types that all other packages share. No I/O.

Begin with ``address`` (names of resources) and ``specs`` (desired resources). ``action`` has the actions of a plan,
``run`` a run's record, ``reports`` the results that commands print, ``diagnostics`` problems and their codes.
``source_uri`` parses sources of weights, ``trust`` decides which hosts may receive a secret, and ``redaction``
removes secrets from output. ``json_codec`` converts dataclasses to JSON and back.
"""
