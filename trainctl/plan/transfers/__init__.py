"""How weights get to the nodes of new runs: how many bytes, by which route, in what time, and whether they fit.

Begin with ``deliveries``, one row for each rank of each new run. ``routes`` chooses and explains the way from the mirror
or from upstream, ``disk_space`` compares sizes with what nodes have free, and ``weights`` is what is known of each
source before anything is transferred.
"""
