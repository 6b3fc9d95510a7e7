"""Starts the processes of a topology, in any world, and ends them."""
