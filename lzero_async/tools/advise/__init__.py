"""`lzero-async advise`: which degree and how many collectors, by simulating the pipeline with the times of a run or
with times given by hand."""
