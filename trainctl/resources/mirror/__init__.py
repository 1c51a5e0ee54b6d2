"""Mirrors as hosts and nodes use them: stores on hosts, links to sources, origins of deliveries, servers."""
