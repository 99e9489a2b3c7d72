"""Programs that look at runs: report, timeline, advise, compare."""
