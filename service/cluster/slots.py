"""The two slots in the ranks' memory in which a trial keeps states."""

#: The start of the warm-up, and later of every stage.
STAGE = "stage"
#: The end of a stage's best probe, kept while others run.
BEST = "best"
