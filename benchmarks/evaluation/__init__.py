"""The published evaluation's two tables with this product's own runs, at the sizes that this machine carries.

runs.py       one server with more and more subscribers; three servers of which one is killed
page.py       docs/evaluation.md from the result
`python -m benchmarks.evaluation` (`make evaluation`) does both.
"""
