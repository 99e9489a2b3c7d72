"""The gatekeeper: the only lock around the gate, who waits at it, pauses and stops."""
