"""The ``aws`` provider: nodes are EC2 instances, created and deleted with their cluster.

Begin with ``provider.AwsProvider``. ``settings`` reads the manifest; ``offers`` chooses instance types, zones and prices, with
those of ``catalog``; ``launch`` creates instances; ``cluster_resources`` has their groups;
``account`` calls AWS.
"""

from trainctl_aws.provider import AwsProvider

__all__ = ["AwsProvider"]
