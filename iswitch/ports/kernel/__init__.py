"""What ports ask of Linux: batches of messages, BPF, interfaces, offloads."""
