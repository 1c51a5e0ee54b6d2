"""Format runs: status, logs, metrics, checkpoints."""
