"""Run scripts one after the other in each process that torchrun starts; imports are made once.

A script's prints go to a file beside it, named by the rank.
"""

import os
import runpy
import sys

import torch.distributed as dist
from torch.distributed import TCPStore

groups = []  # kept: torch may hang where a script's model is the last to hold one (`_GROUPS` in own_loop/attach.py)


destroy = dist.destroy_process_group


def destroy_process_group(group=None):  # Accelerate gives the default
    groups.append(dist.group.WORLD)
    destroy(group)


dist.destroy_process_group = destroy_process_group

rank, host = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
agent = TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False)
stores = []  # torchrun has one, and each script needs its own
for script in sys.argv[1:]:
    if rank == 0:
        stores.append(TCPStore(host, 0, is_master=True, wait_for_workers=False))
        agent.set(script, str(stores[-1].port))
    os.environ["MASTER_PORT"] = agent.get(script).decode()
    with open(f"{script}.{rank}", "w") as sys.stdout:
        runpy.run_path(script, run_name="__main__")
