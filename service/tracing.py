"""OpenTelemetry traces of a job through API, reconciler, driver and workers. Off unless `OTEL_*` names an endpoint.

The id of a job's trace is computed from the job's id. Every process can compute it at any time, so no row stores it.
While traces are off, the SDK is not imported and a span costs one comparison.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, TraceFlags, Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.id_generator import IdGenerator

#: The variables that turn traces on: an endpoint for all signals, or for traces only.
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Drivers and workers run user code, so variables that may hold a secret stay with the service.
_SECRET_ENDS = ("HEADERS", "CLIENT_KEY", "CLIENT_CERTIFICATE")
_EXPORT_EVERY_MS = 1000  # with the SDK's default of 5 s, a killed worker would lose its last spans
_FLUSH_MS = 3000
HOW_TO_INSTALL = "traces are asked for by OTEL_EXPORTER_OTLP_ENDPOINT; they need: pip install 'wiretune[otel]'"

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")

_tracer: Tracer | None = None  # None: off
_parent = Context()  # of spans without another parent in this process
_begun: ContextVar[str | None] = ContextVar("wiretune_begun_job", default=None)


def is_wanted() -> bool:
    """Return whether the environment turns traces on."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    is_none = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").lower() == "none"
    return not is_off and not is_none and any(os.environ.get(name) for name in _ENDPOINTS)


def is_on() -> bool:
    """Return whether this process sends traces."""
    return _tracer is not None


def configure(service: str) -> None:
    """Send this process's spans under the name `service`, as `OTEL_*` configures. Do nothing if traces are off.

    `TRACEPARENT` names the parent of spans that another process started. Raises ImportError without the SDK.
    """
    global _tracer, _parent
    if _tracer is not None or not is_wanted():
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ImportError(HOW_TO_INSTALL) from error
    named = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", service)})
    provider = TracerProvider(resource=named, id_generator=_id_generator())
    every_ms = int(os.environ.get("OTEL_BSP_SCHEDULE_DELAY", _EXPORT_EVERY_MS))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=every_ms))
    trace.set_tracer_provider(provider)
    _tracer = provider.get_tracer("wiretune")
    _parent = _read({name.lower(): os.environ.get(name, "") for name in ("TRACEPARENT", "TRACESTATE")})


def flush() -> None:
    """Send the spans that have ended, within `_FLUSH_MS`."""
    if _tracer is not None:
        trace.get_tracer_provider().force_flush(_FLUSH_MS)  # type: ignore[attr-defined]  # the SDK's provider has it


@contextmanager
def span(
    name: str, *, job: str | None = None, parent: Mapping[str, str] | None = None, **attributes: Any
) -> Iterator[Span]:
    """Open a span for the block. Its parent is the current span, else `parent` or `job`, else the process's parent.

    Args:
        job: id of the job whose trace it belongs to.
        parent: the result of `carrier` in another process.
        attributes: prefixed with `wiretune.`; None values are left out.
    """
    if _tracer is None:
        yield trace.INVALID_SPAN
        return
    shown = {f"wiretune.{key}": value for key, value in attributes.items() if value is not None}
    with _tracer.start_as_current_span(name, _context(job, parent), attributes=shown) as begun:
        yield begun


def traced(name: str) -> Callable[[Callable[Parameters, Answer]], Callable[Parameters, Answer]]:
    """Return a decorator that opens a span with this name for each call."""

    def of(function: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]:
        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
            if _tracer is None:
                return function(*args, **kwargs)
            with span(name):
                return function(*args, **kwargs)

        return call

    return of


def begin_job(job_id: str) -> None:
    """Send the root span of a job's trace. It links to the request that created the job."""
    if _tracer is None:
        return
    links = [Link(trace.get_current_span().get_span_context())]
    token = _begun.set(job_id)
    try:
        _tracer.start_span("job", Context(), attributes={"wiretune.job": job_id}, links=links).end()
    finally:
        _begun.reset(token)


def carrier() -> dict[str, str]:
    """Return the current span for use as `parent` in another process; empty while traces are off."""
    found: dict[str, str] = {}
    if _tracer is not None:
        propagate.inject(found)
    return found


def environment() -> dict[str, str]:
    """Return the variables that let another process trace below the current span; empty while traces are off."""
    if _tracer is None:
        return {}
    told = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    shared = {name: value for name, value in told.items() if not name.endswith((*_SECRET_ENDS, "SERVICE_NAME"))}
    return shared | {name.upper(): value for name, value in carrier().items()}


def ids() -> dict[str, str]:
    """Return the ids of the current trace and span in hexadecimal; empty if there is none."""
    context = trace.get_current_span().get_span_context()
    if _tracer is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def ids_of(job_id: str) -> tuple[int, int]:
    """Return the ids of a job's trace and root span."""
    digest = hashlib.sha256(job_id.encode()).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")


def _context(job: str | None, parent: Mapping[str, str] | None) -> Context | None:
    """Return the context of a new span's parent; None: the current context."""
    if parent:
        return _read(parent)
    if trace.get_current_span().get_span_context().is_valid:
        return None
    if job is None:
        return _parent
    trace_id, span_id = ids_of(job)
    flags = TraceFlags(TraceFlags.SAMPLED if _is_sampled(trace_id) else TraceFlags.DEFAULT)
    begun = SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(begun))


def _is_sampled(trace_id: int) -> bool:
    """Return whether the job's root span is sampled. If not, a parent-based sampler drops all spans below it."""
    sampler = _tracer.sampler  # type: ignore[union-attr]  # the SDK's tracer has it
    return bool(sampler.should_sample(Context(), trace_id, "job").decision.is_sampled())


def _read(carried: Mapping[str, str]) -> Context:
    return propagate.extract({name: value for name, value in carried.items() if value}, Context())


def _id_generator() -> "IdGenerator":
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class OfJobs(RandomIdGenerator):
        """Give the root span of a job's trace the ids computed from the job's id."""

        def generate_trace_id(self) -> int:
            given = _begun.get()
            return super().generate_trace_id() if given is None else ids_of(given)[0]

        def generate_span_id(self) -> int:
            given = _begun.get()
            return super().generate_span_id() if given is None else ids_of(given)[1]

    return OfJobs()
