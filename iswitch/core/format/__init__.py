"""What is on the wire: packets as bytes and arrays, keys, the arbiter, the counters."""
