"""Format what jobs do: status, logs, metrics, checkpoints."""
