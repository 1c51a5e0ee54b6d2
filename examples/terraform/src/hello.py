"""Print the rank."""

import os

print("rank", os.environ["BT_NODE_RANK"], "of", os.environ["BT_GROUP_SIZE"])
