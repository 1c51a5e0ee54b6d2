"""What every program of trainctl shares: the operator's command, the node program and the mirror on a host.

Standard library and Python 3.8 only, as hosts have nothing else. It imports nothing of trainctl but ``trainctl.errors``.
``files`` makes files durable, ``processes`` tells processes apart, ``listing`` names content, and ``protocol`` is how the
operator's side and programs on nodes speak.
"""
