"""What is measured of a run while it runs, and where the numbers go."""
