"""The instrument of `iswitch bench`: allreduce by several strategies, measured in turns.

plan        what is to be measured
member      the process of one worker of one strategy
group       all workers of a strategy, as the conductor has them: orders go out, times come back
measure     rounds in turns (A B A B), warm-up, checks
result      medians, spread, ratios of pairs, CPU per GB, of what was measured
machine     where that was
report      as a table, JSON, CSV
figures, html    the same as pictures, on one page
paper       the comparisons of the paper
forward     a switch that adds nothing, to compare with
"""
