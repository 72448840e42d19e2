"""A group of ranks as Ray actors in the bundles of the trial's placement group."""

import os
import platform
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import psutil
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from service import tracing
from service.cluster import gpus, shared_folder
from service.cluster.attempt import NoPlace, configure_process
from service.job.parts import Workers
from trainers.methods.replica_config import ReplicaConfig
from trainers.training.call_results import Outcome, WorkerLost
from trainers.training.group import WorkerGroup
from trainers.training.rank import Rank

#: The interval at which to check whether there is room for a worker that has not started yet.
_LOOK_S = 1.0


#: Read when the process starts, since it keeps the code it started with, whatever is installed later.
_INSTALLED = {name: version(name).partition("+")[0] for name in ("ray", "torch", "wiretune")}  # without the CUDA suffix


def versions() -> dict[str, str]:
    """Return this process's versions of the packages that must agree on all machines of a run."""
    return {"Python": ".".join(platform.python_version_tuple()[:2])} | _INSTALLED


def require_same_versions(found: Mapping[str, Mapping[str, str]], here: Mapping[str, str]) -> None:
    """Raise UnlikeMachine unless each machine in `found` has the versions `here`; it names what differs and where."""
    for machine, theirs in found.items():
        if differ := [f"{name} {each}, and {here[name]} here" for name, each in theirs.items() if each != here[name]]:
            raise shared_folder.UnlikeMachine(
                f"machine {machine} has {'; '.join(differ)}, where the run is led: install the same versions on every "
                "node of the cluster"
            )


_FLUSH_S = 5.0  # for the last spans of workers that are about to be killed


class RankActor:
    """One rank as an actor. Calls pass plain data; tensors stay in the process."""

    def __init__(self, config: dict[str, Any], rank: int, num_workers: int, workers: dict[str, Any]) -> None:
        configure_process("wiretune-worker", rank=rank)
        self.address = ray.util.get_node_ip_address()
        if interface := interface_of(self.address):
            # otherwise gloo resolves the host's name, perhaps to an address that other nodes cannot reach
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        shape = Workers.model_validate(workers)
        # Checked before this process touches its own GPU. Others may rightly use a shared GPU.
        self.held = gpus.wait_until_free() if shape.gpus >= 1 else ""
        self.rank = Rank(
            ReplicaConfig.model_validate(config),
            rank,
            num_workers,
            device="auto" if shape.gpus else "cpu",
            backend="nccl" if shape.gpus >= 1 else "gloo",
        )

    def introduce(self) -> tuple[str, dict[str, str]]:
        """Return this rank's machine and its versions."""
        return f"{socket.gethostname()} ({self.address})", versions()

    def sees(self, mark: str) -> tuple[str, bool]:
        """Return this rank's machine, and whether it sees the service's file at `mark`."""
        return f"{socket.gethostname()} ({self.address})", shared_folder.sees(mark)

    def rendezvous(self) -> str:
        """Return an address on this node where the group can connect. This process holds the port from now on."""
        # A multi-tenant store: the first rank joins it instead of opening the port by itself.
        self.store = TCPStore(self.address, 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        host = f"[{self.address}]" if ":" in self.address else self.address  # IPv6
        return f"tcp://{host}:{self.store.port}"

    def answer(self, method: str, args: Sequence[Any], trace: Mapping[str, str]) -> tuple[str, Any]:
        """Call the rank and return the fields of an `Outcome`; `trace` is the caller's span."""
        with tracing.span(f"worker {method}", parent=trace) as span:
            outcome = self._placed(gpus.blamed(self.rank.answer(method, args), self.held))
            if span.is_recording():
                span.set_attributes(_times(outcome.content))
        return tuple(outcome)

    def flush(self) -> None:
        """Send the spans that have ended."""
        tracing.flush()

    def _placed(self, outcome: Outcome) -> Outcome:
        """Name this machine in a fault of its own, such as missing data, if the cluster has several machines."""
        is_own = outcome.kind in ("no_data", "refused", "error", "machine_error")
        if not is_own or sum(node["Alive"] for node in ray.nodes()) < 2:
            return outcome
        return outcome._replace(content=f"on {socket.gethostname()} ({self.address}): {outcome.content}")


class RayGroup(WorkerGroup):
    """The ranks of one lane as Ray actors of the current trial. Workers that are placed together share a bundle.

    The backend is NCCL if each rank has its own GPU, else gloo. `mark` is the service's file on the storage.
    Raises WorkerLost if a rank does not start, WorkloadError or WorkerFailed if one cannot build its replica.
    """

    def __init__(self, config: ReplicaConfig, workers: Workers, *, mark: str | None = None, lane: int = 0) -> None:
        self.config, self.num_workers, self._mark = config, workers.count, mark
        self._shape, self._first_worker = workers, lane * workers.count  # among all workers in the trial's bundles
        self._placement = ray.util.get_current_placement_group()  # of this thread; repairs run in another
        self._actors: dict[int, ActorHandle] = {}
        self._calls: dict[int, ray.ObjectRef] = {}  # the last call to each rank
        self._open()

    def close(self) -> None:
        if tracing.is_on() and self._actors:
            flushed = [actor.flush.remote() for actor in self._actors.values()]
            ray.wait(flushed, num_returns=len(flushed), timeout=_FLUSH_S)
        for rank in self._actors:
            self.kill(rank)
        self._actors = {}

    def _adopt(self, other: WorkerGroup, first: int) -> None:
        assert isinstance(other, RayGroup)
        actors, other._actors = other._actors, {}
        self._actors |= {first + rank: actor for rank, actor in actors.items()}

    def start(self, rank: int) -> None:
        asked = self._shape.resources
        # max_restarts=0: a rank restarted by Ray would have lost its state and its peers without notice.
        self._actors[rank] = (
            ray.remote(RankActor)
            .options(
                num_cpus=self._shape.cpus,
                num_gpus=self._shape.gpus,
                memory=asked.get("memory"),
                accelerator_type=self._shape.accelerator,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._placement,
                    placement_group_bundle_index=(self._first_worker + rank) // self._shape.placed_together,
                ),
            )
            .remote(self.config.model_dump(mode="json"), rank, self.num_workers, self._shape.model_dump(mode="json"))
        )

    def await_places(self, ranks: Collection[int]) -> None:
        """Wait until `ranks` have started on like machines. Raises NoPlace, or UnlikeMachine naming what differs.

        If a worker does not start although there is room for it, the next call reports that.
        """
        asked = {self._actors[rank].introduce.remote(): rank for rank in ranks}
        ready: list[ray.ObjectRef] = []
        started = had_room = time.monotonic()
        while asked:
            ready, waiting = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_S)
            now = time.monotonic()
            if not waiting or now - started > self.config.start_timeout_s:
                break
            if placement_group_table(self._placement)["state"] == "CREATED":
                had_room = now
            elif now - had_room > self._shape.patience_s:
                names = ", ".join(str(asked[call]) for call in waiting)
                raise NoPlace(
                    f"there was no room for worker {names} within {self._shape.patience_s:g} s "
                    "(`workers.patience_s`): its machine is gone, and no other has room"
                )
        found = {}
        for call in ready:
            with suppress(RayError):  # it has died: the next call reports that
                machine, theirs = ray.get(call)
                found[machine] = theirs
        require_same_versions(found, versions())
        self._require_one_folder([asked[call] for call in ready])

    def _require_one_folder(self, ranks: Collection[int]) -> None:
        """Raise UnlikeMachine if one of the started `ranks` sees a folder of its own in place of the service's."""
        if (mark := self._mark) is None:
            return
        for call in [self._actors[rank].sees.remote(mark) for rank in ranks]:
            with suppress(RayError):  # as above, or its storage hangs
                machine, is_seen = ray.get(call, timeout=self.config.start_timeout_s)
                if not is_seen:
                    raise shared_folder.stranger(machine, mark)

    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        self._calls[rank] = self._actors[rank].answer.remote(method, args, tracing.carrier())

    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        calls = {self._calls[rank]: rank for rank in ranks}
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout_s)
        return {calls[call]: _outcome_of(call) for call in ready}

    def kill(self, rank: int) -> None:
        ray.kill(self._actors[rank], no_restart=True)

    def _rendezvous(self, host: int) -> str:
        try:
            address: str = ray.get(self._actors[host].rendezvous.remote(), timeout=self.config.reply_timeout_s)
        except RayError as error:
            raise WorkerLost([host], death_of(error)) from error
        return address


def _times(content: Any) -> dict[str, float]:
    """Return where the seconds of a trained segment went, with those of the exchange; nothing for other calls."""
    found = content.get("times") if isinstance(content, dict) else None
    return {f"wiretune.{name}_seconds": seconds for name, seconds in (found or {}).items()}


def _outcome_of(call: ray.ObjectRef) -> Outcome:
    try:
        return Outcome(*ray.get(call))
    except RayTaskError as error:  # raised outside the rank's own error handling
        return Outcome("error", str(error))
    except RayError as error:
        return Outcome("death", death_of(error))


def death_of(error: RayError) -> str:
    """Return Ray's message about a death in one line, without the causes that Ray only guesses."""
    lines = str(error).strip().splitlines() or [repr(error)]
    return lines[-1].partition("Some common causes")[0].strip()


def interface_of(address: str) -> str | None:
    """Return the network interface with `address`, or None."""
    found = psutil.net_if_addrs().items()
    return next((name for name, own in found if any(each.address == address for each in own)), None)
