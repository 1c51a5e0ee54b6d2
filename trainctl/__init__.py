"""trainctl: plan, review and apply training jobs and their weights on machines you own."""

__version__ = "0.1.0"
