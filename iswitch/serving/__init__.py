"""A switch as a process: its settings checked, its ports opened, served until it must end."""
