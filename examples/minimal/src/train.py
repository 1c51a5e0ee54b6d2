"""Replace this by your training script."""

import os
import socket
from pathlib import Path

rank, size = os.environ["BT_NODE_RANK"], os.environ["BT_GROUP_SIZE"]
print(f"rank {rank} of {size} on {socket.gethostname()}")
checkpoint = Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-1")
checkpoint.mkdir(parents=True)
(checkpoint / "result.txt").write_text("done\n")
