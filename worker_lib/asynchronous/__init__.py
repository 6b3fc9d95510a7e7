"""Asynchronous workers: where each stands, and how one that is behind catches up."""
