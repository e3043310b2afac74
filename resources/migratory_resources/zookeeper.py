"""What a ZooKeeper member is told, on one machine as on Kubernetes: ticks, limits, who the members are, its log."""

from __future__ import annotations

from collections.abc import Sequence

TICK_MS = 500

LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601}{UTC}Z %-5p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def zoo_cfg(data: str, port: int, more: Sequence[str], members: Sequence[str], min_session_ms: int = 1000) -> str:
    """`zoo.cfg` of a member. `more` are lines of where it runs; `members` are all of them as HOST:QUORUM:ELECTION,
    in the order of their numbers. One alone is no ensemble, and names nobody.

    The text is part of what decides whether pods are made anew: another order of lines would restart every ensemble.
    """
    lines = [
        f"tickTime={TICK_MS}",
        "initLimit=20",
        "syncLimit=10",
        f"dataDir={data}",
        f"clientPort={port}",
        f"minSessionTimeout={min_session_ms}",
        "maxSessionTimeout=60000",
        "maxClientCnxns=0",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr,mntr,ruok",
        *more,
    ]
    if len(members) > 1:
        lines += [f"server.{number}={member}" for number, member in enumerate(members, 1)]
    return "\n".join(lines) + "\n"
