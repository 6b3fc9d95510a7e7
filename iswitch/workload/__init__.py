"""Workloads: what each rank of a program computes and calls, step by step, in files.

`records` reads and writes the format of docs/workloads.md; `profiler` makes it of the
traces of `torch.profiler`. `programs` makes of it what `iswitch.sim.model.steps` plays.
"""
