"""The custom resource definitions, generated from the models.

`python -m migratory_resources.crd FOLDER...` writes them (`make crds`).
"""
