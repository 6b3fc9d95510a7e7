"""Impaired links: what is lost, doubled, damaged or late, and what a link has room for."""
