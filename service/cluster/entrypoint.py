"""The driver: a Ray Job that runs one attempt of a job as one Tuner. `python -m service.cluster.entrypoint`."""

import logging
import os
import shutil
import sys
import tempfile
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayActorError

from service import tracing
from service.cluster.attempt import Hopeless, configure_process, is_wanted, last_line
from service.cluster.reporter import BRIEF_S, Door, LeaseKeeper, Reporter, Stopped
from service.job.spec import JobSpec
from service.wire.records import DRIVER_STREAM, AttemptBrief, AttemptFinished, Control

log = logging.getLogger("wiretune.driver")


def main() -> int:
    """Run the attempt that the environment names; the exit status says how it ended."""
    configure_process("wiretune-driver")
    door = Door.from_environment()
    brief = door.brief(max_silence_s=float(os.environ.get("WIRETUNE_MAX_SILENCE_S", BRIEF_S)))
    log.info("attempt %d of %s: the driver is up", brief.number, brief.job_id)
    lease = LeaseKeeper(door, renew_s=brief.renew_s, max_silence_s=brief.max_silence_s, on_loss=_die)
    reporter = Reporter(door, DRIVER_STREAM, max_silence_s=brief.max_silence_s)
    try:
        with tracing.span("attempt", job_id=brief.job_id, attempt=brief.number):
            finished = run(brief)
        log.info("attempt %d of %s %s %s", brief.number, brief.job_id, finished.outcome, finished.reason)
        reporter.flush(finished)
    except Stopped as stopped:
        log.info("stopped: %s", stopped.reason)
        return 1
    finally:
        lease.close()
        reporter.close()
    return 0


def _die(stopped: Stopped) -> None:
    """End the whole attempt at once: when this process exits, Ray ends every process that it owns."""
    log.error("attempt ends: %s", stopped.reason)
    logging.shutdown()
    os._exit(3)


def run(brief: AttemptBrief) -> AttemptFinished:
    """Train every unfinished trial, as trials of one Tuner."""
    todo = [point.trial_id for point in brief.trials if is_wanted(brief, point)]
    if not todo:  # the attempt before this one died with its last word on its lips, or the user has asked for an end
        return outcome_of([brief.control])
    scratch = tempfile.mkdtemp(prefix="wiretune-tune-")
    try:
        # Ray has all workers import from the driver's folder first. That of a user may have a `service.py`.
        os.chdir(scratch)
        ray.init(address="auto", namespace=brief.job_id, log_to_driver=True, configure_logging=False)
        results = _tuner(brief, todo, scratch).fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if results.errors:
        return failure_of(results.errors[0])
    return outcome_of([result.metrics["outcome"] for result in results])


def failure_of(error: Exception) -> AttemptFinished:
    """Return how the attempt ended, given the error of the first trial that failed."""
    if isinstance(error, RayActorError):
        return AttemptFinished(outcome="failed", reason="the process of a trial died")
    # Ray wraps a trial's error in an instance of both classes.
    return AttemptFinished(outcome="failed", reason=last_line(error), retry=not isinstance(error, Hopeless))


def outcome_of(trials: list[str]) -> AttemptFinished:
    """Return how the attempt ended, given how its trials ended."""
    if Control.CANCEL in trials:
        return AttemptFinished(outcome="cancelled", reason="cancelled by a user")
    if Control.PAUSE in trials:
        return AttemptFinished(outcome="paused", reason="paused by a user")
    num_diverged = trials.count("diverged")
    reason = f"{num_diverged} of {len(trials)} trials diverged" if num_diverged else ""
    return AttemptFinished(outcome="succeeded", reason=reason)


def _tuner(brief: AttemptBrief, todo: list[str], scratch: str) -> tune.Tuner:
    workers = brief.spec.workers
    bundles = bundles_of(brief.spec, brief.num_workers or workers.count)
    placement = tune.PlacementGroupFactory(bundles, strategy=workers.placement.upper())
    trainable = tune.with_resources(train_trial, placement)
    of_all = {"trace": tracing.carrier(), "max_silence_s": brief.max_silence_s}
    return tune.Tuner(
        trainable,
        param_space={"trial_id": tune.grid_search(todo), **of_all},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=brief.trials_at_once or concurrency(brief.spec, len(todo)),
            reuse_actors=True,  # a trial's process goes on with the next one: its imports take 6 s
        ),
        run_config=tune.RunConfig(
            name=f"{brief.job_id}-a{brief.number}",
            storage_path=scratch,
            verbose=0,
            failure_config=tune.FailureConfig(fail_fast=True),  # the next attempt resumes the other trials, too
        ),
    )


def bundles_of(spec: JobSpec, num_workers: int) -> list[dict[str, float]]:
    """Return the bundles of a trial with `num_workers` in each lane. A bundle lies on one machine.

    The trial's own is empty, since the trial waits while its workers train: so n workers fit n cores.
    """
    size = spec.workers.placed_together
    bundle = {name: size * amount for name, amount in spec.workers.resources.items()}
    return [{}] + [bundle] * (spec.lanes.count * num_workers // size)


def concurrency(spec: JobSpec, num_trials: int) -> int:
    """Return the number of trials to run at a time: as many as have their own cores, or their times mean nothing."""
    total, asked = ray.cluster_resources(), spec.workers.resources
    fits = min(int(total.get(name, 0) // (amount * spec.num_workers)) for name, amount in asked.items())
    return max(1, min(fits, num_trials))


def train_trial(config: dict[str, Any]) -> None:
    """Train one trial in the process that Tune started for it."""
    from service.cluster import tune_trial  # here: the driver itself needs neither torch nor the search

    tune_trial.run(config["trial_id"], config["trace"], max_silence_s=config["max_silence_s"])


if __name__ == "__main__":
    # Import this module by its own name: Tune pickles functions by name, and must not look for them in `__main__`.
    from service.cluster import entrypoint

    sys.exit(entrypoint.main())
