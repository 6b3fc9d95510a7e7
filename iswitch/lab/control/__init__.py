"""Asks a switch for `iswitch ctl`, and words its answers."""
