"""`python -m lzero_async advise`: which degree and how many collectors, by simulating the pipeline with the times of a run or
with times given by hand."""
