"""The cores, pure functions of events and time: `logic` is what brokers must agree on, `edge` what connections need.

Their surfaces are `logic/events.py` and `edge/events.py`. The simulation runs this very code
(docs/contributing/simulation.md).
"""
