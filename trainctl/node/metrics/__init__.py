"""Metrics of a run: ``sampler`` runs periodically, ``resource_usage`` measures."""
