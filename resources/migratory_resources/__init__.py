"""The custom resources as data: the MigratoryCluster, the SLAReport and their service level objectives. Pure.

Used by the local runner, the operator and the SLA pipeline. Layers, each of which imports only those below it:

| module | purpose |
| --- | --- |
| `crd` | the custom resource definitions, generated from the models |
| `validation` | from a file or a custom resource to a model, with every error at once |
| `report` | the SLAReport: its spec and its status |
| `cluster` | the MigratoryCluster: its spec, its status, and the configuration files made from it |
| `report_settings` | how reports are made: Prometheus, Spark, time zone |
| `objectives` | service level objectives |
| `fields`, `quantities` | types of fields, durations and sizes |
"""

from migratory_resources.cluster.process_config import broker_config
from migratory_resources.cluster.spec import MigratoryCluster
from migratory_resources.objectives import DEFAULT_OBJECTIVES, Objective, Slices, WindowSpec
from migratory_resources.validation.loading import LoadedCluster, load_cluster, load_cluster_file
from migratory_resources.validation.problems import ClusterFileError, FieldProblem

__all__ = [
    "DEFAULT_OBJECTIVES",
    "ClusterFileError",
    "FieldProblem",
    "LoadedCluster",
    "MigratoryCluster",
    "Objective",
    "Slices",
    "WindowSpec",
    "broker_config",
    "load_cluster",
    "load_cluster_file",
]
