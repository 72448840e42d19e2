"""The base of every optimizer's configuration: what an exchange may ask of it. Pydantic only."""

from trainers.spec.ranges import Config


class OptimizerBase(Config):
    """An optimizer of the parameters. Its knobs are its kind's, or those that a user's parameter groups bring."""

    kind: str
