"""What a terminal shows of a run."""
