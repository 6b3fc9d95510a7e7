"""Reinforcement learning whose gradients the network can sum."""
