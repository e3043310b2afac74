"""The exceptions that the client raises. Each docstring says what happened and what the caller can do."""

from __future__ import annotations

from migratory_client.core.events import PublishFailed, Receipt


class MigratoryError(Exception):
    """The base class of the client's exceptions. `str(error)` is the message for people. `code` is an error code of the
    protocol or of the client itself; that of a GapError is the kind of its receipt, such as `truncated`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectError(MigratoryError):
    """No broker accepted the client within `open_timeout` (`code` is `connect_failed`), or a broker refused the
    client's token for good (`code` is `unauthenticated`). The text contains the latest problem that the client met, if
    there was one."""


class PublishError(MigratoryError):
    """A publication failed. An error of exactly this class is a refusal by the broker or the client, for the reason in
    `code`: the publication was not stored, and will probably be refused again unless it is changed. The exception is
    the code `unauthenticated`, which closes the client: the publication may have been stored. Subclasses have other
    causes."""


class PublishTimeout(PublishError):
    """No answer to a QoS 1 publication arrived within `Settings.publish_timeout`, or within the cluster's duplicate
    window after it was first sent, if that is shorter. The publication may still appear, but never after a later one of
    this client in the topic. Publishing it again may duplicate it."""


class OutcomeUnknown(PublishError):
    """It is unknown whether a QoS 1 publication was stored: the cluster no longer knows its message id, or the
    publication was sent again on another connection or with another token, and refused then. Publishing it again may
    duplicate it."""


class TooManyWaiting(PublishError):
    """The limit of unanswered QoS 1 publications, `Settings.max_waiting`, is reached. This one was not published; await
    earlier ones first."""


class NotConnected(PublishError):
    """A publication with QoS 0 was submitted while no broker was connected. It was not published."""


class SubscribeError(MigratoryError):
    """The subscription to one topic was refused, or a newer subscription of the same client took the topic over (`code`
    is `taken_over`). The topic has left this subscription. Its other topics are not affected."""


class GapError(MigratoryError):
    """Publications are missing at this point of the stream. `receipt` says which, or, when its kind is `reset`, that
    their number is unknown. The subscription continues: iterate again to receive the following messages. With the
    argument `on_gap` of `subscribe`, that function is called instead of raising this error."""

    def __init__(self, receipt: Receipt) -> None:
        if receipt.not_replayed:
            text = (
                f"{receipt.topic}: not replayed: this client may not read the history; the topic continues after "
                f"{receipt.after}; you were at {receipt.before}"
            )
        elif receipt.kind == "reset":
            start = "from now on" if receipt.after is None else f"after {receipt.after}"
            last = "" if receipt.before is None else f"; you were at {receipt.before}"
            text = f"{receipt.topic}: the earlier history is lost; the topic continues {start}{last}"
        else:
            text = f"{receipt.topic}: the publications {receipt.first} to {receipt.last} are missing ({receipt.kind})"
        super().__init__(receipt.kind, text)
        self.receipt = receipt


class Closed(MigratoryError):
    """The client is closed: it was not opened yet, or it was closed since. Open it, or use another one. A publication
    that was waiting for its answer may still appear."""

    def __init__(
        self,
        text: str = "the client is closed: enter it first (`async with Client(...) as client`; `with` for SyncClient), "
        "or call `open`",
    ) -> None:
        super().__init__("closed", text)


def publish_error(failed: PublishFailed) -> MigratoryError:
    """Return the exception for a publication that failed, by its code: PublishTimeout, OutcomeUnknown, Closed,
    TooManyWaiting or NotConnected, and PublishError for every other code."""
    match failed.code:
        case "timeout":
            return PublishTimeout(failed.code, failed.text)
        case "outcome_unknown":
            return OutcomeUnknown(failed.code, failed.text)
        case "closed":
            return Closed(failed.text)
        case "too_many_waiting":
            return TooManyWaiting(failed.code, failed.text)
        case "not_connected":
            return NotConnected(failed.code, failed.text)
        case _:
            return PublishError(failed.code, failed.text)
