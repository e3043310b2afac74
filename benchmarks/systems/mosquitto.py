"""Mosquitto with a WebSocket listener and without persistence."""

from __future__ import annotations

from migratory_local.processes.network import free_ports

from benchmarks import peers
from benchmarks.processes import MeasurementFailed, wait_for_port
from benchmarks.systems.base import System, Workload

# Version 2.0.11 does not start with a WebSocket listener alone; the other one is not used.
CONFIG = """\
listener {web} 127.0.0.1
protocol websockets
listener {tcp} 127.0.0.1
allow_anonymous true
user root
persistence false
max_connections -1
max_queued_messages 0
set_tcp_nodelay true
log_type error
log_type warning
"""


class Mosquitto(System):
    """One Mosquitto broker."""

    protocol = "mqtt"

    def __init__(self) -> None:
        super().__init__("mosquitto")

    async def start(self, work: Workload, core: int | None) -> None:
        program = peers.find("mosquitto")
        if program is None:
            raise MeasurementFailed("mosquitto is not installed; run `make bench-peers`")
        web, tcp = free_ports(2)
        path = self.folder / "mosquitto.conf"
        path.write_text(CONFIG.format(web=web, tcp=tcp))
        process = self._run([program, "-c", str(path)], core, peers.environment("mosquitto"))
        await wait_for_port(process, web)
        self.addresses = [("127.0.0.1", web)]
