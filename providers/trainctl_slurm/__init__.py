"""The ``slurm`` provider: jobs are queued, placed and started by Slurm.

Begin with ``provider.SlurmProvider``: its only node is the login host. ``submission`` reads the manifest and
builds the arguments of sbatch, ``queries`` reads what Slurm's commands print.
"""

from trainctl_slurm.provider import SlurmProvider

__all__ = ["SlurmProvider"]
