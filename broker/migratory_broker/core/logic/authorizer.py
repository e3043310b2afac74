"""The place for identity and permission checks. This release allows everything."""

from __future__ import annotations

from typing import Protocol

from migratory_broker.core.logic.events import Attach, PublishRequest


class Authorizer(Protocol):
    """Both answer why the request is refused, "" when it is allowed."""

    def publish(self, event: PublishRequest) -> str: ...

    def attach(self, event: Attach) -> str: ...


class AllowAll:
    def publish(self, event: PublishRequest) -> str:
        return ""

    def attach(self, event: Attach) -> str:
        return ""
