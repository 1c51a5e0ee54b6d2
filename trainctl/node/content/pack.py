"""How the two ends of a blob server speak of packs and turns. DESIGN.md, "Cache"; apart from both, as a client need not load a server."""

from __future__ import annotations

import struct

EVENLY = "evenly"
"""A wish (``Prefer``): let nobody who wants the same get far ahead of the others."""
LENGTH = struct.Struct(">Q")
ABSENT, COMING = 2**64 - 1, 2**64 - 2
"""Written instead of a length in a pack: not here, or somebody alive is bringing it."""
