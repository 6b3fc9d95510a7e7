"""Runs this package's control plane over a P4 program, through the CPU port of a bmv2."""
