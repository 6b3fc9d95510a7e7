"""Runs real programs over a simulated network: a coordinator owns the clock of all processes."""
