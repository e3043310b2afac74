"""The operator: makes and keeps what a MigratoryCluster asks for.

Begin with `decide.py`: from what there is (`observe.py`) to what shall be (`objects/`), what shall go, and the status;
pure. `reconcile.py` carries it out for one cluster, `queue.py` says when, `main.py` starts it all. Only `api.py` speaks
to the API server, only `brokers.py` to brokers.
"""
