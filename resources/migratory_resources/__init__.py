"""The cluster resource and the objectives as data; pure, shared by the local runner, the operator and the SLA pipeline.

Begin with `model.py` (the fields) and `objectives.py`; `validation.py` turns a file into them, `rules.py` holds what
must fit between fields, `broker.py` makes the configuration that brokers read, `zookeeper.py` that of ZooKeeper.
"""

from migratory_resources.broker import broker_config
from migratory_resources.model import MigratoryCluster
from migratory_resources.objectives import DEFAULT_OBJECTIVES, Objective, Slices, Window
from migratory_resources.problems import ClusterFileError, Problem
from migratory_resources.validation import Loaded, load_cluster, load_cluster_file

__all__ = [
    "DEFAULT_OBJECTIVES",
    "ClusterFileError",
    "Loaded",
    "MigratoryCluster",
    "Objective",
    "Problem",
    "Slices",
    "Window",
    "broker_config",
    "load_cluster",
    "load_cluster_file",
]
