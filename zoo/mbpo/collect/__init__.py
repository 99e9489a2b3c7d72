"""Collecting transitions."""
