"""Reinforcement learning whose gradients can be summed on the way."""
