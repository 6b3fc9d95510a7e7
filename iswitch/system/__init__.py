"""Deals with the system for a process: files, keys, Ctrl-C, errors for people."""
