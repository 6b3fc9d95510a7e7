"""`iswitch simulate`: iterations of any number of workers, predicted by `iswitch.sim.model`."""
