"""Metrics of a run: ``sampler`` measures periodically, ``progress`` is what the job reports."""
