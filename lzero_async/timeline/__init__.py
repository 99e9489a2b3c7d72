"""What the roles of a run did over time: as text, as a picture."""
