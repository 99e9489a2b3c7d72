"""Simulations of the pipeline on the real gate."""

__all__ = ["distributions", "pipeline"]
