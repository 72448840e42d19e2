"""The slots of the ranks' memory in which a trial keeps states; there are two."""

#: What the warm-up, and later every stage, starts from.
STAGE = "stage"
#: The end of a stage's best probe, put aside while others run.
BEST = "best"
