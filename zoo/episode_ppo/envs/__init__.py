"""Environments by name."""
