"""Packet traces: replayed, injected, analyzed and generated as the command line asks."""
