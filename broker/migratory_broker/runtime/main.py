"""The process: log, event loop, and the exit code that a supervisor sees."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import uvloop

from migratory_broker.runtime.config import BrokerConfig, Identity, check_identity
from migratory_broker.runtime.errors import BrokerError
from migratory_broker.runtime.logs import LibraryLog, Log
from migratory_broker.runtime.process import Broker


def run(config: BrokerConfig, identity: Identity, level: str = "info", source: Path | None = None) -> int:
    """Run one broker until it is told to end. Returns its exit code (errors.py). Raises ConfigError before that.

    :param source: the file of `config`, which is looked at now and then (rereading.py).
    """
    check_identity(config, identity)
    log = Log(level=level, common={"cluster": config.cluster, "broker": identity.name})
    library = LibraryLog(log)
    logging.getLogger().addHandler(library)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(config, identity, log, source))
    except BrokerError as error:
        log("error", "cannot_run", reason=str(error), code=error.code)
        return error.code
    finally:
        logging.getLogger().removeHandler(library)
        log.close()


async def _run(config: BrokerConfig, identity: Identity, log: Log, source: Path | None) -> int:
    return await Broker(config, identity, log, source).run()
