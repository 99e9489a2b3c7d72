"""What is measured of a run while it runs, and where the numbers go."""

__all__ = ["quantities", "sinks", "terminal", "utilisation", "view"]
