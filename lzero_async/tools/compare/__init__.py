"""`lzero-async compare`: an application run synchronously and asynchronously on the same work, side by side.

The applications are run as a user runs them, as programs; nothing of them is imported.
"""
