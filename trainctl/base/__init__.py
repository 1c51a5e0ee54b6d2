"""What every program of trainctl shares: the operator's command, the node program and the mirror on a host.

Standard library and Python 3.8 only, as hosts have nothing else. It imports nothing of trainctl but ``trainctl.errors``.
``filesystem.files`` makes files durable, ``system.processes`` identifies processes, ``listing`` names blobs, and
``protocol`` is how the client and programs on nodes speak.
"""
