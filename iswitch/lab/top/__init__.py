"""`iswitch top`: a network of switches in a terminal, made from their snapshots alone."""
