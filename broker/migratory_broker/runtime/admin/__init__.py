"""The administration's HTTP endpoints and the metrics."""
