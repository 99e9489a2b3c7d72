"""What a run has learned, played: a table of episodes."""
