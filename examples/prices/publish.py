"""Publish made-up prices, and serve the page that shows them: `.venv/bin/python examples/prices/publish.py`."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import threading
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from migratory_client import Client

ROOT = Path(__file__).parents[2]
SERVERS = [f"ws://127.0.0.1:{port}/ws" for port in (8800, 8801, 8802)]


class Pages(SimpleHTTPRequestHandler):
    """The page and the JavaScript client, and nothing else of the clone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=str(ROOT))

    def translate_path(self, path: str) -> str:
        found = super().translate_path(path)
        public = (ROOT / "examples" / "prices", ROOT / "clients" / "js" / "src")
        return found if any(Path(found).is_relative_to(folder) for folder in public) else str(ROOT / "none")

    def log_message(self, format: str, *args: Any) -> None:
        pass


async def publish(servers: list[str]) -> None:
    prices = {"chf": 0.9312, "gbp": 0.8641, "usd": 1.0842}
    async with Client(servers) as client:
        while True:
            for currency in prices:
                prices[currency] *= random.uniform(0.999, 1.001)
            await asyncio.gather(
                *(client.publish(f"prices/{name}", json.dumps({"price": price})) for name, price in prices.items())
            )
            await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "-s", "--server", action="append", help="a broker's URL; repeat it (default: of `migratory up`)"
    )
    parser.add_argument("--port", type=int, default=8080, help="of the page; 0: a free one")
    options = parser.parse_args()
    servers = options.server or SERVERS
    try:
        server = ThreadingHTTPServer(("127.0.0.1", options.port), Pages)
    except OSError as error:
        parser.error(f"--port {options.port}: {error.strerror}; choose another port, or 0 for a free one")
    with server as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        query = urlencode([("server", url) for url in servers])
        print(f"open http://127.0.0.1:{pages.server_port}/examples/prices/?{query}", flush=True)
        asyncio.run(publish(servers))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
