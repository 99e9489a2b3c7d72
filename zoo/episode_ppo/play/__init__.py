"""Playing whole episodes."""
