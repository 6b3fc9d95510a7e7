"""Impaired links: loss, duplicates, damage, delay, and the room of a link's queue."""
