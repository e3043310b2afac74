"""A pod that answers like a Prometheus, but on each path only its first client: all others wait for ever.

So a report's driver finds its samples and starts executors, which hang in the middle of their work. For tests of
reports that do not end.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from migratory_testing.prometheus_wire import streamed

from migratory_node.kubectl import Kubectl
from migratory_node.pods import Pods, is_ready

NAME = "slow-metrics"
_SCRIPT = """
import base64, http.server, os, threading
ANSWER, first = base64.b64decode(os.environ["ANSWER"]), {}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("/api/v1/read"):
            return self.send_error(404)
        known = first.setdefault(self.path, self.client_address[0]) == self.client_address[0]
        if not known or self.path.startswith("/silent"):
            threading.Event().wait()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)
http.server.ThreadingHTTPServer(("", 9090), Handler).serve_forever()
"""


def start_slow_prometheus(kube: Kubectl, end: datetime) -> str:
    """Start the pod with a minute of samples up to `end`, wait until it is ready, and return its URL without a path.
    On each path it answers only its first client, and on paths that begin with `/silent` none."""
    times = [round((end - timedelta(seconds=back)).timestamp() * 1000) for back in range(60, 0, -1)]
    labels = {"__name__": "migratory_received_total", "cluster": "quotes", "instance": "load:1", "broker": "b0"}
    answer = streamed([(labels, [(time, float(number)) for number, time in enumerate(times)])])
    environment = [{"name": "ANSWER", "value": base64.b64encode(answer).decode()}]
    Pods(kube).start(NAME, "-c", _SCRIPT, command=["python3"], env=environment)
    return kube.until(lambda: _url(kube), "the pod's address", 60)


def _url(kube: Kubectl) -> str:
    pod = kube.get("pod", NAME)
    return f"http://{pod['status']['podIP']}:9090" if pod is not None and is_ready(pod) else ""


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
