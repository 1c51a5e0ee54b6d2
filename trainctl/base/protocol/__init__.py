"""Protocol between the client and the node program.

Begin with ``method``: a call has a name, a typed request and a typed response. ``runs``, ``host``, ``weights``, ``training``
and ``mirrors`` define the methods and their values, ``wire`` lines, frames, rows, and requests from the node to the client.
``base.system.call_server`` serves the calls.
"""

WAITS_FOR_SECRETS = "waits for secrets"
"""``waiting`` of a run whose supervisor ended, and lost its secrets, before the first command."""

WAITS_FOR_RESUME = "waiting for apply or reconcile to resume it"
"""``waiting`` of such a run whose secrets are stored on the node's disk."""

INTERRUPTED = "interrupted: "
"""Start of the ``error`` of a stopped run whose machine the platform takes back."""
