"""The coordinator under the name that PriorZero's users import."""

from lzero_async import AsyncTrainingCoordinator

__all__ = ["AsyncTrainingCoordinator"]
