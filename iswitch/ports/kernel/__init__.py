"""Linux' system calls for ports: batches of messages, BPF, interfaces, offloads."""
