"""Playing: episodes, search, root policy, text encoder."""
