"""A Spark data source that reads raw samples from Prometheus servers (docs/reference/prometheus-source.md).

source.py            the classes that Spark calls: partitions, streams, pushed-down filters; begin here
options.py           every option, validated; selectors.py parses the option `matchers`
pushdown.py          Spark's filters to narrower options
preflight.py         checks before planning whether there are samples, and if none, why
partitions.py        cuts a window into partitions and reads one: servers, selectors, retries, halving
remote_read.py       reads by remote read: chunk_stream.py, xor.py and histogram_chunk.py (streamed chunks),
                     sample_response.py (plain samples), protobuf.py (the encoding)
range_selector.py    reads by the JSON API, for servers without remote read
http.py              sends the requests: connection pools, retries; errors.py has the errors of all modules
blocks.py            the blocks of samples that both readers yield; arrow.py makes Spark's batches of them
native_histogram.py  samples that are histograms; classic.py converts them to the classic form

The package imports nothing else of the product. `spark/pyproject.toml` makes a wheel of it alone.
"""

from migratory_spark.prometheus.errors import NoSamplesFound, OptionError, ServerError, SourceError
from migratory_spark.prometheus.source import FORMAT, PrometheusDataSource, read_samples, register

__all__ = [
    "FORMAT",
    "NoSamplesFound",
    "OptionError",
    "PrometheusDataSource",
    "ServerError",
    "SourceError",
    "read_samples",
    "register",
]
