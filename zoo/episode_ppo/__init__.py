"""PPO on whole episodes: workers play them at their own pace, without a barrier at every step, on the core `lzero_async`."""
