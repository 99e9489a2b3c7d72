"""Where roles run (inline, thread, process, Ray) and how data travel between them."""

__all__ = ["backend", "calls", "parcels", "step_watch"]
