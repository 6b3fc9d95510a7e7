"""The control plane of the P4 program: this package's own, over the CPU port of a bmv2."""
