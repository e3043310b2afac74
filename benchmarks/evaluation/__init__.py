"""The published evaluation's two tables with this product's own runs, at sizes that this machine carries.

runs.py       the runs: one server with more and more subscribers; three servers of which one is killed
page.py       docs/reference/evaluation.md from the result
`python -m benchmarks.evaluation` (`make evaluation`) does both.
"""
