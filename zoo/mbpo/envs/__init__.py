"""Vectorised environments."""
