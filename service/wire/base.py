"""The bases of what is asked and answered, and the limit of what is answered page by page."""

from pydantic import BaseModel, ConfigDict

#: Entries of a page, at most.
MAX_PAGE = 500


class View(BaseModel):
    """Base of answers. Readers leave out what they do not know: a newer service may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Asked(BaseModel):
    """Base of what is asked. A field that is not known is refused: it may be misspelt."""

    model_config = ConfigDict(extra="forbid", frozen=True)
