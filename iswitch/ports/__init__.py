"""Ports: bring packets to a switch or worker, and take them away."""
