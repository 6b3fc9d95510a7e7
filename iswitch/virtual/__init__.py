"""A process in virtual time: its clock, its threads, its packets, and what its computing costs."""
