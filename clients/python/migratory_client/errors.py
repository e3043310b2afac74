"""What a client raises. Each error says who is at fault and what the caller can do."""

from __future__ import annotations

from migratory_client.events import Failed, Receipt


class MigratoryError(Exception):
    """Any failure of this client. `code` is the protocol's error code, or one of the client's own."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectError(MigratoryError):
    """No broker could be reached within the time given, or all refused; the text names the last reason."""


class PublishError(MigratoryError):
    """The broker refused this publication for good: it was not published. Change it before trying again."""


class PublishTimeout(PublishError):
    """No answer within the time limit, or the client was closed first. The publication may still appear, but never
    after a later one of this client; publishing it again may double it."""


class TooManyWaiting(PublishError):
    """The bound on unanswered publications is reached: await earlier ones first. It was not published."""


class NotConnected(PublishError):
    """QoS 0 and no broker at this moment. It was not published."""


class SubscribeError(MigratoryError):
    """The broker refused a subscription. The client's other subscriptions are not touched."""


class GapError(MigratoryError):
    """Publications are missing at this place of the stream; `receipt` says which. The subscription goes on: iterate
    again to take what follows. With `on_gap` the stream is not interrupted."""

    def __init__(self, receipt: Receipt) -> None:
        if receipt.kind == "reset":
            where = f"; you were at {receipt.before}" if receipt.before is not None else ""
            text = f"{receipt.topic}: the history before {receipt.position} is lost; the topic goes on behind it{where}"
        else:
            text = f"{receipt.topic}: the publications {receipt.first} to {receipt.last} are missing ({receipt.kind})"
        super().__init__(receipt.kind, text)
        self.receipt = receipt


class Closed(MigratoryError):
    """The client is closed; open it, or use another one."""

    def __init__(
        self,
        text: str = "the client is closed: enter it first (`async with Client(...) as client`; `with` for SyncClient), "
        "or call `open`",
    ) -> None:
        super().__init__("closed", text)


def publish_error(failed: Failed) -> MigratoryError:
    """The error that a publication ends with."""
    match failed.code:
        case "timeout":
            return PublishTimeout(failed.code, failed.text)
        case "closed":
            return Closed(failed.text)
        case "too_many_waiting":
            return TooManyWaiting(failed.code, failed.text)
        case "not_connected":
            return NotConnected(failed.code, failed.text)
        case _:
            return PublishError(failed.code, failed.text)
