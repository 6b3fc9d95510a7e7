"""Traces: packet captures in, read at memory speed, replayed through a switch, and compared."""
