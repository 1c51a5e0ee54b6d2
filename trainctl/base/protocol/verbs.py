"""The verbs of the node program, by name."""

from __future__ import annotations

from typing import Any, Dict

from trainctl.base.protocol import caches, checkpoints, code, host, mirrors, runs, weights
from trainctl.base.protocol.verb import Verb

GROUPS = (host, code, weights, runs, checkpoints, caches, mirrors)

VERBS: Dict[str, Verb[Any, Any]] = {
    verb.name: verb for group in GROUPS for verb in vars(group).values() if isinstance(verb, Verb)
}
