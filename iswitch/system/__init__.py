"""What a process has to do with the system: files, keys, Ctrl-C, errors for people."""
