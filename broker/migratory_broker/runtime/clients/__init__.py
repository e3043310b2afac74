"""The clients of one process: HTTP upgrade, handshake queue, connections, multicasts. Start at `service.py`."""
