"""Programs around runs: report, timeline, advise, compare look at them; setup installs what they need."""
