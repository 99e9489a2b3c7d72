"""The coordination core: the gate and its rules, the coordinator and its loop. Standard library only."""

__all__ = ["weights"]
