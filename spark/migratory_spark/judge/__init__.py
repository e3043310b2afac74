"""Judging: totals become good and bad events of each objective, and verdicts.

Begin with `verdicts.py`. `objective_windows.py` says over which time an objective is judged, `event_counts.py` counts
events, `time_slices.py` counts slices of time.
"""
