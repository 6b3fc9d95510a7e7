"""The instrument of `iswitch bench`: collectives by several strategies, measured in turns.

plan        what is to be measured
member      the process of one worker of one strategy
vectors     what workers contribute, and what must come of it
network     the networks that strategies run on
group       all workers of a strategy: orders go out to them, times come back
measure     rounds in turns (A B A B), warm-up, checks
result      medians, spread, ratios of pairs, CPU per GB, of what was measured
machine     the computer that this was measured on
report      as a table, JSON, CSV
figures, html    the results as plots, on one page
paper       the comparisons of the paper
"""
