"""Asynchronous workers: the version of each, and how a worker that is behind catches up."""
