"""Artifacts: the files of a job."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from service.job.vocabulary import Vocabulary
from service.wire.base import View


class ArtifactKind(Vocabulary):
    """The kinds of a job's files."""

    REPORT = "report"
    METRICS = "metrics"
    SCHEDULE = "schedule"
    WEIGHTS = "weights"
    CHECKPOINT = "checkpoint"
    LOG = "log"


#: Which of a trial's weights: those of the best evaluated state, or of the end.
Which = Literal["best", "last"]


class Artifact(View):
    """A file of a job that there is."""

    name: str = Field(description="unique within the job")
    kind: ArtifactKind
    trial_id: str | None = Field(description="null: of the whole job")
    href: str = Field(
        description="where a GET has it; of a checkpoint its manifest, with the SHA-256 of each file beside it"
    )
    media_type: str
    num_bytes: int | None = Field(description="of a checkpoint all its files'; null: made when it is asked for")
    sha256: str | None = Field(
        None, description="of weights, which `Repr-Digest` has too; a checkpoint's manifest has those of its files"
    )
    created_at: datetime | None = Field(description="null: made when it is asked for, or not known")
