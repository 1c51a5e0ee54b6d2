"""Rank 0 adds up the numbers that the other ranks send, and saves the sum."""

import os
import socket
import time
from pathlib import Path

rank, size = int(os.environ["BT_NODE_RANK"]), int(os.environ["BT_GROUP_SIZE"])
leader = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(leader) as server:
        total = sum(int(server.accept()[0].recv(9)) for _ in range(size - 1))
    print(f"sum of {size - 1} numbers: {total}")
    checkpoint = Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-1")
    checkpoint.mkdir(parents=True)
    (checkpoint / "sum.txt").write_text(f"{total}\n")
else:
    for _ in range(100):
        try:
            socket.create_connection(leader).sendall(str(rank * 10).encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
