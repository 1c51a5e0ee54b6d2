"""The weights and code that a node keeps: delivered, leased, verified, evicted."""
