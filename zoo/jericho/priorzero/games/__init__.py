"""Text games: story files, their processes, valid actions, the environment."""
