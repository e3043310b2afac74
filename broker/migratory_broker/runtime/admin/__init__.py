"""The administration of a broker: its HTTP pages for health, status and metrics (`server.py`), and the metrics
(`metrics.py`)."""
