"""Checks the machine for `iswitch doctor`."""
