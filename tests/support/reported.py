"""Drivers' reports for tests of the store."""

from service.wire.records import Bill, MetricPoints, ScheduleEntry, TrialFinished

BILL = Bill(
    bytes_sent=500,
    bytes_search=120,
    bytes_by_purpose={"gradient": 380, "control": 120},
    bytes_dense=4000,
    seconds_search=2.5,
    seconds_training=9.0,
    seconds_evaluation=0.5,
    seconds_checkpoint=0.25,
    steps=10,
    steps_search=10,
)


def points(trial_id, steps, values=None):
    steps = tuple(steps)
    return MetricPoints(
        trial_id=trial_id,
        name="loss",
        steps=steps,
        seconds=tuple(float(step) for step in steps),
        values=tuple(values or (1.0 / (step + 1) for step in steps)),
    )


def finished(trial_id, **changes):
    fields = {
        "outcome": "completed",
        "validation_loss": 0.5,
        "validation_metrics": {"accuracy": 0.9},
        "schedule": (ScheduleEntry(step=0, num_steps=30, learning_rate=0.1),),
        "bill": Bill(bytes_sent=900, steps=30, seconds_training=3.0),
        "weights_url": "file:///w",
    }
    return TrialFinished(trial_id=trial_id, **(fields | changes))
