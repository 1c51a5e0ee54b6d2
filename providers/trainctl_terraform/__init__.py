"""The ``terraform`` provider: nodes are machines that a Terraform or OpenTofu module creates, one state for each.

Begin with ``provider.TerraformProvider``. ``settings`` reads the manifest and the module's output; ``module`` calls a module
and has its working directories; ``program`` runs the program; ``states`` keeps its state in the project's records.
"""

from trainctl_terraform.provider import TerraformProvider

__all__ = ["TerraformProvider"]
