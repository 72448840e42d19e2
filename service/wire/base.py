"""Base classes of requests and answers, and the page size limit."""

from pydantic import BaseModel, ConfigDict

from search.config import Config

#: The maximum number of entries in a page.
MAX_PAGE = 500


class View(BaseModel):
    """Base of answers. Readers ignore unknown fields, since a newer service may send more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Asked(Config):
    """Base of requests. Unknown fields are refused, since they may be misspelt."""
