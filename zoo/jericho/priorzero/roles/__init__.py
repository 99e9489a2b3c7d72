"""The roles of a run and how they are made."""
