"""Which hosts of a network each of several jobs gets: read, predicted, placed and drawn."""
