"""PriorZero: UniZero with an LLM prior on Jericho text games, on the asynchronous core `lzero_async`."""
