"""Telemetry of the operator: metrics, health endpoints and Kubernetes Events."""
