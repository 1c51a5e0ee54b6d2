"""The supervisor and the verbs about runs: what uses all the rest."""
