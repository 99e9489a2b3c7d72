"""MBPO: SAC, an ensemble of dynamics networks and short model rollouts, on the asynchronous core `lzero_async`."""
