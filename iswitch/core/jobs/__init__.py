"""Jobs: their members, ranks and windows, and the trees that they make."""
