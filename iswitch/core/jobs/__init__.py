"""Who takes part: jobs, their members, ranks, windows, and the trees they make."""
