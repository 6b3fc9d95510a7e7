"""Federated learning as the FedProx paper does it: data, local solvers, and rounds."""
