"""What adds: synchronous rounds, asynchronous versions, and the paper's accelerator."""
