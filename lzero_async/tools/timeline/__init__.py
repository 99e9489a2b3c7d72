"""What the roles of a run did over time, read from its trace: as text, as a picture."""
