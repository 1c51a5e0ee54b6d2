"""How the operator's side and programs on nodes speak: lines, frames, rows, requests and answers."""

WANTS_SECRETS = "waits for secrets"
"""What a run waits for whose supervisor is gone, with the secrets that it had, before the first command was begun."""

WANTS_CARRYING_ON = "waits for apply or watch to carry it on"
"""What such a run waits for whose secrets this node keeps on its disk."""
