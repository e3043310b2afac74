"""The clients of one process: handshakes, HTTP requests, the console, connections and multicasts. Begin with
`service.py`."""
