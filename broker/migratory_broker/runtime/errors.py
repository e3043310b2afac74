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
    """The error for a configuration or a command line of the broker that is not valid."""

    code = EXIT_CONFIG


class TlsError(ConfigError):
    """The error for a certificate, its key or its authority that cannot be used."""


class ListenError(BrokerError):
    """The error for an address that could not be bound: it is in use, not of this machine, or not permitted."""

    code = EXIT_BUSY


class ZooKeeperError(BrokerError):
    """The error for a ZooKeeper that was not reached at the start within the allowed time or denied access, and for a
    password for it that is missing or malformed."""

    code = EXIT_ZOOKEEPER


class DescriptorError(BrokerError):
    """The error for a process that may open too few files, by the limit of the operating system."""

    code = EXIT_DESCRIPTORS
