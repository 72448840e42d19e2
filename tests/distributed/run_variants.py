"""Run scripts one after the other, each in a fork of this process, which torchrun starts on every rank.

A script's prints go to a file beside it, named by the rank. What scripts import is imported once.
"""

import importlib
import os
import runpy
import sys

from torch.distributed import TCPStore

imported, *scripts = sys.argv[1:]
for module in imported.split(","):
    importlib.import_module(module)
rank, host = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
agent = TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False)
stores = []  # torchrun has one, and each script needs its own
for script in scripts:
    if rank == 0:
        stores.append(TCPStore(host, 0, is_master=True, wait_for_workers=False))
        agent.set(script, str(stores[-1].port))
    os.environ["MASTER_PORT"] = agent.get(script).decode()
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{script} failed")
        continue
    sys.argv = [script]
    with open(f"{script}.{rank}", "w") as sys.stdout:
        runpy.run_path(script, run_name="__main__")
    os._exit(0)
