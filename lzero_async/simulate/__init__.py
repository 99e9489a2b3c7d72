"""Simulations of the pipeline on the real gate."""
