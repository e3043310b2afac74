"""What ends a broker at its start or in its life, with the exit code that a supervisor sees."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_BUSY = 5
EXIT_ZOOKEEPER = 4


class BrokerError(Exception):
    """A person has to change something: the text says what is wrong and what is allowed."""

    code = EXIT_FAILED


class ConfigError(BrokerError):
    """The configuration or the command line is wrong."""

    code = EXIT_CONFIG


class ListenError(BrokerError):
    """An address could not be bound: it is in use, not ours, or not permitted."""

    code = EXIT_BUSY


class ZooKeeperError(BrokerError):
    """ZooKeeper could not be reached within the time for it at the start."""

    code = EXIT_ZOOKEEPER
