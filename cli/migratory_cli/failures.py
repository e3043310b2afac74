"""Failures of the commands that go on for long."""

from __future__ import annotations

import click


class Failed(click.ClickException):
    """A failure of the cluster, the network or this machine; usage errors end with 2."""

    exit_code = 1
