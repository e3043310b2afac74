"""The errors that end a broker, and the exit codes that a supervisor sees."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_BUSY = 5
EXIT_ZOOKEEPER = 4
EXIT_HUNG = 6
EXIT_DESCRIPTORS = 7


class BrokerError(Exception):
    """The base class of errors that a person has to fix. The text says what is wrong and what is allowed. `code` is the
    exit code."""

    code = EXIT_FAILED


class ConfigError(BrokerError):
    """The configuration or the command line of the broker is not valid."""

    code = EXIT_CONFIG


class TlsError(ConfigError):
    """A certificate, its key or its authority cannot be used."""


class ListenError(BrokerError):
    """An address could not be bound: it is in use, not of this machine, or not permitted."""

    code = EXIT_BUSY


class ZooKeeperError(BrokerError):
    """No ZooKeeper was reached at the start within the allowed time, none gave access, or the password for it is
    missing or malformed."""

    code = EXIT_ZOOKEEPER


class DescriptorError(BrokerError):
    """The operating system lets the process open too few files."""

    code = EXIT_DESCRIPTORS
