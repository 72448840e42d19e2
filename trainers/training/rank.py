"""The rank's side of a group: it answers calls, and turns whatever they raise into an `Outcome`."""

import gc
import traceback
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.error import ContentTooShortError

from trainers.exchange.connection import PeerLost
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.training.call_results import Built, Outcome
from trainers.training.replica import Backend, Replica
from trainers.workload import NoData, Workload, WorkloadError

#: Errors of the operating system that only a person can fix.
_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
#: Torch's messages begin like this if a loader process was killed or hangs. Errors inside a loader begin otherwise.
_LOADER_LOST = ("DataLoader worker (pid", "DataLoader timed out")


def _may_pass(error: Exception) -> bool:
    """Return whether the machine failed, so that a later attempt may succeed."""
    if isinstance(error, OSError):
        return not isinstance(error, _LASTING) and _is_of_system(error)
    return isinstance(error, RuntimeError) and str(error).startswith(_LOADER_LOST)


def _is_of_system(error: BaseException) -> bool:
    """Return whether the system, the network or a server caused an OSError. Libraries also raise it for damaged files.

    A library's error counts if the system's is its cause. A loader process passes on only the text of an error.
    """
    if isinstance(error, ConnectionError | TimeoutError | ContentTooShortError) or _is_of_server(error):
        return True
    if getattr(error, "errno", None) is not None:
        return True
    cause = error.__cause__ or error.__context__
    return "[Errno" in str(error) or (cause is not None and _is_of_system(cause))


def _is_of_server(error: BaseException) -> bool:
    """Return whether urllib or requests reports a server error (5xx), or 429 Too Many Requests."""
    status = getattr(getattr(error, "response", None), "status_code", getattr(error, "code", None))
    return isinstance(status, int) and (status == HTTPStatus.TOO_MANY_REQUESTS or status >= 500)


class Rank:
    """Builds a replica on request, and answers calls with it. Arguments and answers are JSON-compatible."""

    def __init__(self, config: ReplicaConfig, rank: int, num_workers: int, *, device: str, backend: Backend) -> None:
        self._launch = (config, rank, num_workers)
        self._device, self._backend = device, backend
        self._replica: Replica | None = None
        self._workload: Workload | None = None  # of a replica that was built before: its data are loaded

    def answer(self, method: str, args: Sequence[Any]) -> Outcome:
        """Return the result of a call. After a failure, this rank leaves its peers until it is told to connect."""
        outcome = self._attempt(method, args)
        if outcome.kind != "answer" and self._replica is not None:
            # Peers in a collective hear of it at once. Not while an exception's traceback still holds the connection.
            self._replica.close()
        return outcome

    def _attempt(self, method: str, args: Sequence[Any]) -> Outcome:
        try:
            return Outcome("answer", self._call(method, args))
        except PeerLost as lost:
            return Outcome("peer_lost", str(lost))
        except WorkloadError as refused:
            return Outcome("no_data" if isinstance(refused, NoData) else "refused", str(refused))
        except Exception as error:  # the border of the process: the other end judges it
            return Outcome("machine_error" if _may_pass(error) else "error", traceback.format_exc())

    def _call(self, method: str, args: Sequence[Any]) -> Any:
        if method == "move":
            self._move(*args)
            return None
        if method == "configure":
            self._configure(*args)
            return None
        if method == "build":
            return self._build()._asdict()
        if self._replica is None:
            raise ValueError(f"a rank must be told to `build` first, got {method!r}")
        if method == "connect":
            self._replica.connect(*args, backend=self._backend)
            replica = self._replica
            return replica.backend, str(replica.device), replica.shapes, replica.nodes
        return answer(self._replica, method, args)

    def _build(self) -> Built:
        """Build the replica, with the data that an earlier one has loaded."""
        config, rank, num_workers = self._launch
        self._replica = replica = Replica(config, rank, num_workers, device=self._device, workload=self._workload)
        self._workload = replica.workload
        return Built(
            fingerprint=replica.fingerprint(),
            likeness=replica.likeness(),
            metrics=dict(replica.workload.metrics),
            matrices=replica.matrices(),
            has_batch_norm=replica.has_batch_norm,
            num_validation=len(replica.workload.validation),
            num_test=0 if replica.workload.test is None else len(replica.workload.test),
        )

    def _move(self, first: int, num_workers: int) -> None:
        """Become a rank of a larger group, `first` ranks further on. Call `build` and `connect` again afterwards."""
        config, rank, _ = self._launch
        self._launch = (config, first + rank, num_workers)
        self._drop()

    def _configure(self, config: Mapping[str, Any]) -> None:
        """Switch to another configuration. Call `build` and `connect` again afterwards."""
        _, rank, num_workers = self._launch
        self._launch = (ReplicaConfig.model_validate(config), rank, num_workers)
        self._drop()

    def _drop(self) -> None:
        if self._replica is not None:
            self._replica.close()
        self._replica = None
        gc.collect()  # its parts hold each other, and there may be no memory for two


def answer(replica: Replica, method: str, args: Sequence[Any]) -> Any:
    """Answer a `Group.call` with a replica."""
    match method:
        case "run":
            return replica.run(Segment.model_validate(args[0])).model_dump(mode="json")
        case "run_until_average":
            told, begin, pace = args
            segment = Segment.model_validate(told)
            return replica.run(segment, begin, until_average=True, pace=pace).model_dump(mode="json")
        case "meet":
            return replica.meet().model_dump(mode="json")
        case "run_alone":
            own = dict(enumerate(args[0])).get(replica.rank)
            return own and replica.run_alone(Segment.model_validate(own)).model_dump(mode="json")
        case "evaluate":
            return replica.evaluate(averaged=args[0], on=args[1]).model_dump(mode="json")
        case "export":
            return replica.export(args[0], averaged=args[1]).model_dump(mode="json")
        case "save":
            return [shard.model_dump() for shard in replica.save(args[0])]
        case "saved":
            shards = replica.saved(*args)
            return shards and [shard.model_dump() for shard in shards]
        case (
            "begin_save"
            | "snapshot"
            | "restore"
            | "forget"
            | "load"
            | "reset"
            | "take_bytes"
            | "give_state"
            | "take_state"
            | "landscape"
        ):
            return getattr(replica, method)(*args)
        case _:
            raise ValueError(f"`method` must be one that a group asks for, got {method!r}")
