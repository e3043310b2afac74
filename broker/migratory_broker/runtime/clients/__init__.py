"""The clients of one process: HTTP upgrade, handshake queue, connections, multicasts. Begin with `service.py`."""
