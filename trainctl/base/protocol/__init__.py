"""How the operator's side and programs on nodes speak: lines, frames, rows, requests and answers."""

WAITS_FOR_SECRETS = "waits for secrets"
"""What a run waits for whose supervisor is gone, with the secrets that it had, before the first command was begun."""

WAITS_FOR_RESUME = "waiting for apply or reconcile to resume it"
"""What such a run waits for whose secrets this node keeps on its disk."""
