"""Tells what a switch does now: a snapshot in JSON, the source of every view (docs/watch.md)."""
