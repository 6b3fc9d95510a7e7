"""The worker's side of the protocol: no socket, clock or thread."""
