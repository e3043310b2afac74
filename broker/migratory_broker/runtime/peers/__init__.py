"""The links of a broker to the other brokers of its cluster: `links.py` has all of them, `link.py` one connection."""
