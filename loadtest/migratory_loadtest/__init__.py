"""The load generator: thousands of subscribers and open-loop publishers, and an exact account of what arrived.

Start at `api.py` (what a program calls), then `scenario.py` (what a run is), `worker.py` (one process of the run) and
`verifier.py` (what was lost, doubled, swapped). docs/loadtest.md explains what is measured and how.
"""

from migratory_loadtest.api import Load, LoadEvent, run_load
from migratory_loadtest.result import LoadResult
from migratory_loadtest.scenario import Scenario

__all__ = ["Load", "LoadEvent", "LoadResult", "Scenario", "run_load"]
