"""A run as a program: its folder, options, checkpoints, and the application around the coordinator."""

__all__ = [
    "application",
    "applications",
    "checkpoint",
    "checks",
    "folder_lock",
    "options",
    "policy",
    "program",
    "role_set",
    "run_dir",
    "scored",
    "soundness",
    "summary",
]
