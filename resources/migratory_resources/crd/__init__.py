"""The custom resource definitions of MigratoryCluster and SLAReport, generated from the models.

`python -m migratory_resources.crd FOLDER...` writes them (`make crds`).
"""
