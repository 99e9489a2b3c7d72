"""Learning: updates, replay, reanalysis, data-parallel ranks."""
