"""Ports: what brings packets to a switch or worker and takes them away."""
