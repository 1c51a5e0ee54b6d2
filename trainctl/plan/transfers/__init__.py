"""Forecasts for the delivery of weights to new runs.

Begin with ``deliveries``: a row for each rank and weights of each new run. ``routes`` chooses and explains routes,
``disk_space`` compares sizes with free space, and ``weights`` summarizes the resolved sources.
"""
