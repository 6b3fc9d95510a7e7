"""Requests that are repeated until they are answered, and relays that are executed once."""
