"""Programs around runs: report, timeline, advise, compare look at them; play uses them; setup installs what they need."""

__all__: list[str] = []
