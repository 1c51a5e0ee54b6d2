"""The ``terraform`` provider: nodes are machines that a Terraform or OpenTofu module creates, one state for each.

Begin with ``provider.TerraformProvider``. ``settings`` reads the manifest, records of nodes and the module's output; ``module``
calls a module and has state, lock and plans of a node; ``program`` runs the program.
"""

from trainctl_terraform.provider import TerraformProvider

__all__ = ["TerraformProvider"]
