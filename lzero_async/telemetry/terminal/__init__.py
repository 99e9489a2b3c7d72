"""What a terminal shows of a run."""

__all__ = ["progress"]
