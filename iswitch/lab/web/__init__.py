"""`iswitch web`: a live page of a network of switches, made from their snapshots alone."""
