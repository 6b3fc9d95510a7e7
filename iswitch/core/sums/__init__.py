"""The data plane: sums of synchronous rounds, of asynchronous versions, and the paper's counter."""
