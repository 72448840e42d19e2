"""Prometheus metrics for operators: counts of this process, and the state of the database.

Counts start with the process, and each replica has its own: sum them. Gauges of the database are the same at every
replica: take the maximum.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.control.database.session import Database
from service.control.models import AttemptRow, JobRow, MessageRow
from service.control.queue.capacity import Node, Size
from service.errors import Unavailable
from service.job.states import JobState
from service.wire.records import Batch, Bill, Checkpointed, MetricPoints

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MAX_TRIALS = 10_000  # bills remembered at most

disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of the text, and no dashboard reads them


class Telemetry:
    """The metrics of one store and the process that serves it. Thread-safe."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        self.requests = Counter(
            "wiretune_http_requests", "Answers, by operation and status", ["operation", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "wiretune_http_request_seconds", "From a request to the end of its answer",
            ["operation"], buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge("wiretune_http_requests_in_flight", "Requests without a whole answer", registry=registry)
        self.readers = Gauge("wiretune_event_readers", "Open streams of events", registry=registry)
        self.writes_waiting = Gauge("wiretune_writes_waiting", "Writes that wait for their turn", registry=registry)
        self.group_size = Histogram(
            "wiretune_write_group_size", "Writes that shared a transaction", buckets=_GROUPS, registry=registry
        )
        self.group_seconds = Histogram(
            "wiretune_write_group_seconds", "A transaction from begin to commit", buckets=_SECONDS, registry=registry
        )
        self.records = Counter("wiretune_records", "Records of drivers, by kind", ["kind"], registry=registry)
        self.points = Counter("wiretune_metric_points", "Points of metrics that drivers reported", registry=registry)
        self.steps = Counter("wiretune_trained_steps", "Steps that trials committed", registry=registry)
        self.bytes_sent = Counter(
            "wiretune_link_bytes",
            "Bytes that a worker of each trial sent, by purpose",
            ["purpose"],
            registry=registry,
        )
        self.bytes_dense = Counter(
            "wiretune_link_dense_bytes", "What the same steps would have sent without compression", registry=registry
        )
        self.repairs = Counter(
            "wiretune_repairs", "Times that lost workers, or their connection, were replaced", registry=registry
        )
        self.rounds = Histogram(
            "wiretune_round_seconds", "Rounds of the loops that look after jobs", ["loop"], buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.failed_rounds = Counter("wiretune_failed_rounds", "Rounds that failed", ["loop"], registry=registry)
        self.last_round = Gauge(
            "wiretune_last_round_timestamp_seconds", "When a loop last ended a round", ["loop"], registry=registry
        )
        self.cluster_up = Gauge("wiretune_cluster_up", "1: Ray answered the last time it was asked", registry=registry)
        self.capacity = Gauge("wiretune_cluster_resources", "Cores and GPUs of all nodes", ["kind"], registry=registry)
        self.taken = Gauge("wiretune_cluster_resources_taken", "Those of running jobs", ["kind"], registry=registry)
        self._bills: dict[str, Bill] = {}

    def watch(self, db: Database) -> None:
        """Add the state of the database, and the number of waiting writes, to each scrape."""
        self._registry.register(_Standing(db))
        self.writes_waiting.set_function(lambda: db.num_waiting)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    @contextmanager
    def round(self, loop: str) -> Iterator[None]:
        """Time a round of a loop, and count its failure, unless another service did not answer."""
        began = time.perf_counter()
        try:
            yield
        except Unavailable:
            raise
        except Exception:
            self.failed_rounds.labels(loop).inc()
            raise
        finally:
            self.rounds.labels(loop).observe(time.perf_counter() - began)
            self.last_round.labels(loop).set_to_current_time()

    def note_group(self, size: int, seconds: float) -> None:
        """Count a transaction of `size` writes."""
        self.group_size.observe(size)
        self.group_seconds.observe(seconds)

    def note_cluster(self, nodes: Sequence[Node]) -> None:
        """Set the capacity of the cluster, which has answered."""
        self.cluster_up.set(1)
        for kind in ("cpus", "gpus"):
            self.capacity.labels(kind).set(sum(getattr(node, kind) for node in nodes))

    def note_running(self, sizes: Iterable[Size]) -> None:
        """Set the resources that running jobs take."""
        taken = tuple(sizes)
        for kind in ("cpus", "gpus"):
            self.taken.labels(kind).set(sum(getattr(each, kind) for each in taken))

    def note_batch(self, batch: Batch) -> None:
        """Count the contents of a batch. Call it once for each batch, when it is stored."""
        for record in batch.records:
            self.records.labels(record.kind).inc()
            if isinstance(record, MetricPoints):
                self.points.inc(len(record.steps))
            elif isinstance(record, Checkpointed):
                continue  # its bill is as old as its copy: bills that are newer have been counted
            elif (bill := getattr(record, "bill", None)) is not None:
                self._note_bill(record.trial_id, bill)  # type: ignore[union-attr]

    def _note_bill(self, trial_id: str, bill: Bill) -> None:
        """Count the growth of a bill. A trial's first bill counts nothing: part of it may predate this process."""
        before = self._bills.pop(trial_id, None)
        self._bills[trial_id] = bill
        if len(self._bills) > _MAX_TRIALS:
            del self._bills[next(iter(self._bills))]
        if before is None:
            return
        search = max(0, bill.bytes_search - before.bytes_search)
        self.bytes_sent.labels("search").inc(search)
        self.bytes_sent.labels("training").inc(max(0, bill.bytes_sent - before.bytes_sent - search))
        self.bytes_dense.inc(max(0, bill.bytes_dense - before.bytes_dense))
        self.steps.inc(max(0, bill.steps - before.steps))
        self.repairs.inc(max(0, bill.repairs - before.repairs))


class _Standing(Collector):
    """The state of the database at the moment of a scrape."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, since registering must not read the database."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges; if the database does not answer, only that fact."""
        try:
            with self._db.reading() as session:
                found = list(_gauges(session, self._db.now()))
        except Unavailable:
            found = []
        yield GaugeMetricFamily("wiretune_database_up", "1: the database answers", 1.0 if found else 0.0)
        yield from found


def _gauges(session: Session, now: float) -> Iterator[GaugeMetricFamily]:
    found = session.execute(select(JobRow.state, func.count()).group_by(JobRow.state))
    numbers = dict(found.all())
    jobs = GaugeMetricFamily("wiretune_jobs", "Jobs by state", labels=["state"])
    for state in JobState:
        jobs.add_metric([state.value], numbers.get(state.value, 0))
    yield jobs
    oldest = session.scalar(select(func.min(JobRow.queued_at)).where(JobRow.state == JobState.QUEUED.value))
    waits = 0.0 if oldest is None else now - oldest
    yield GaugeMetricFamily("wiretune_oldest_queued_seconds", "Longest that a queued job has waited", waits)
    ended = select(AttemptRow.outcome, func.count()).group_by(AttemptRow.outcome)
    attempts = GaugeMetricFamily("wiretune_attempts", "Attempts by outcome; open: not ended", labels=["outcome"])
    for outcome, number in session.execute(ended):
        attempts.add_metric([outcome or "open"], number)
    yield attempts
    lease = session.scalar(select(func.min(AttemptRow.lease_expires)).where(AttemptRow.ended_at.is_(None)))
    if lease is not None:
        yield GaugeMetricFamily("wiretune_lease_left_seconds", "Until the first open attempt's lease ends", lease - now)
    waiting = session.scalar(select(func.count()).where(MessageRow.next_at.is_not(None)).select_from(MessageRow))
    yield GaugeMetricFamily("wiretune_webhooks_waiting", "Messages that are to be sent", waiting or 0)
