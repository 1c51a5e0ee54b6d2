"""The ``aws`` provider: nodes are EC2 instances, created and deleted with their cluster.

Begin with ``provider.AwsProvider``. ``settings`` reads the manifest; ``market`` chooses instance
types, zones and prices; ``launch`` creates instances, with ``user_data`` and ``keys``; ``network`` has their security and
placement groups; ``account`` calls AWS.
"""

from trainctl_aws.provider import AwsProvider

__all__ = ["AwsProvider"]
