"""Metrics of a run: ``sampler`` takes samples periodically, ``resource_usage`` measures."""
