"""How the language model learns: from what the search found, beside the world model."""
