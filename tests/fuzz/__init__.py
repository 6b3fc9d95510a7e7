"""What must hold whatever comes: random histories (Hypothesis), fuzzing by coverage (atheris).

invariants.py     what holds of a Switch, and of all that it sends, after every step
oracle.py         the rules of synchronous rounds once more, packet by packet in plain Python
targets.py        bytes as a program: what the fuzzer runs
corpus.py         the inputs of each target, in a text file of lines of hex (corpus/)
__main__.py       `python -m tests.fuzz TARGET`: run it for long, add to the corpus
"""
