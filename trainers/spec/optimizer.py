"""The base of every optimizer's configuration: what an exchange may ask of it. Pydantic only."""

from typing import ClassVar

from trainers.spec.ranges import Config


class OptimizerBase(Config):
    """An optimizer of the parameters. Its knobs are its kind's, or those that a user's parameter groups bring."""

    #: Whether ranks that round differently may step apart by much more, as along factors that each computes by itself.
    amplifies_rounding: ClassVar[bool] = False

    kind: str
