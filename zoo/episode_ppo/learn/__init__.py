"""PPO on whole episodes."""
