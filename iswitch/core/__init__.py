"""The switch itself: no socket, clock, thread, chance or file. Time is an argument."""
