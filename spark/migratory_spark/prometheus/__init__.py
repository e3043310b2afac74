"""A data source for Spark that reads raw samples from Prometheus servers. docs/prometheus-source.md is for its users.

source.py        what Spark sees: partitions, streams, pushed-down filters; start here
options.py       every option, checked; selectors.py parses `matchers`
partitions.py    how a window is cut, and how one partition is read: servers, selectors, retries, halving
remote_read.py   samples by remote read: chunk_stream.py and xor.py (streamed chunks), sample_response.py, protobuf.py
range_selector.py  the other way, by JSON
preflight.py     why there is nothing to read
blocks.py        what they all hand on; arrow.py makes Spark's batches of it
"""

from migratory_spark.errors import NothingFound, OptionError, ServerError, SourceError
from migratory_spark.prometheus.source import FORMAT, PrometheusDataSource, read_samples, register

__all__ = [
    "FORMAT",
    "NothingFound",
    "OptionError",
    "PrometheusDataSource",
    "ServerError",
    "SourceError",
    "read_samples",
    "register",
]
