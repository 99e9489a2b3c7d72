"""A run as a program: its folder, options, checkpoints, and the application around the coordinator."""
