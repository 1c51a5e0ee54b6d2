"""What EC2 offers, and at which price.

Begin with ``offers``, which combines the settings of a cluster with zones, prices and quotas from AWS. ``catalog`` has the
instance types that trainctl knows, with prices of one date for use without a connection.
"""
