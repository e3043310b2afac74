"""The load generator: thousands of subscribers and open-loop publishers, and exact verification of every delivery.

Begin with `api.py` (the public API), then `scenario.py` (the parameters of a run), `controller.py` (the parent
process), `worker.py` (one load process) and `verifier.py` (lost, duplicate and reordered deliveries).
docs/how-to/loadtest.md explains what is measured and how.
"""

from migratory_loadtest.api import Load, LoadEvent, run_load
from migratory_loadtest.result import LoadResult
from migratory_loadtest.scenario import Scenario

__all__ = ["Load", "LoadEvent", "LoadResult", "Scenario", "run_load"]
