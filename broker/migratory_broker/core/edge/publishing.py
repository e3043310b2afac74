"""Publishing, in the edge core: valid publications of clients go to the logic, and the logic's answers back to the
clients.

A refused publication affects only its sender. QoS 1 is refused with `nack`, which names the message, QoS 0 with
`error`.
"""

from __future__ import annotations

from migratory_protocol import errors, limits
from migratory_protocol.messages import Error, Nack, Publish
from migratory_protocol.peer import ForwardedPublication
from migratory_protocol.topics import BadTopic, check_topic
from msgspec.structs import replace

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.identity import IdentityChecks
from migratory_broker.core.edge.state import ClientConnection
from migratory_broker.core.logic.events import Observe, PublishAnswers
from migratory_broker.core.security.authorizer import unqualified

BUSY_RETRY_AFTER = 0.1
"""Seconds that a client with too many unanswered publications is asked to wait before it sends again."""


class PublishHandler:
    """The checks of the publications of an edge's clients, and the way of the logic's answers back to them. `published`
    counts the publications that were passed to the logic, for /metrics."""

    def __init__(self, config: EdgeConfig, number: int, delivery: EdgeDelivery, identities: IdentityChecks) -> None:
        self._config = config
        self._number = number
        self._delivery = delivery
        self._identities = identities
        self._unnamed = 0  # publications of QoS 1 without a publisher so far
        self.published = 0

    def publish(self, connection: ClientConnection, message: Publish) -> None:
        """Pass a publication to the logic, or refuse it with `nack` (QoS 1) or `error`: for an invalid field, a missing
        permission, or too many unanswered QoS 1 publications. The edge names and numbers a QoS 1 publication whose HTTP
        client gave no publisher, and adds the subject to a publisher's name where clients have identities.

        The request's reference is the connection's number: topic, publisher and id of an answer identify the message.
        """
        error = self._validate(connection, message)
        if error is not None:
            self._refuse(connection, message, *error)
            return
        if message.qos == 1:
            if connection.unanswered >= self._config.publishes_per_client:
                text = f"limit of unanswered publications reached ({self._config.publishes_per_client})"
                self._delivery.emit(Observe("migratory_refusals_total", label="publishes_per_client"))
                self._refuse(connection, message, errors.RETRY, text, BUSY_RETRY_AFTER)
                return
            connection.unanswered += 1
            publisher, number, mark = message.publisher, message.id, message.mark
            if connection.format.publisher:
                publisher, number = self._number_unnamed(connection.format.publisher)
                mark = number
            if connection.access is not None:
                publisher = connection.access.qualify(publisher)
        else:
            publisher, number, mark = "", 0, 0
        self.published += 1
        self._delivery.forward(
            self._number,
            connection,
            ForwardedPublication(message.topic, message.payload, message.qos, publisher, number, mark, message.sent),
        )

    def _number_unnamed(self, name: str) -> tuple[str, int]:
        """Return publisher and message id of a publication whose client named no publisher. `name` is the name that the
        edge uses for these.

        All these publications of an edge share a name, and so a row of the publisher table for each topic and subject.
        The name changes after `limits.ID_JUMP` ids: two ids of one topic that are further apart would break ID-BOUND.
        Each id is its own mark: nothing is sent again from here, and on its way to the coordinator no publication
        overtakes another one of its topic.
        """
        series, number = divmod(self._unnamed, limits.ID_JUMP)
        self._unnamed += 1
        return f"{name}-{series}", number + 1

    def answer(self, connection: ClientConnection, event: PublishAnswers) -> None:
        """Send the logic's answers to the client, with the names that its publishers gave themselves, in as few frames
        as possible, and subtract them from its unanswered publications."""
        connection.unanswered -= len(event.answers)
        answers = event.answers
        if connection.access is not None:
            answers = [replace(answer, publisher=unqualified(answer.publisher)) for answer in answers]
        self._delivery.reply_all(connection, answers)

    def _validate(self, connection: ClientConnection, message: Publish) -> tuple[str, str] | None:
        """Return code and text of the error for an invalid or forbidden publication, None for a valid one. The codec
        has already checked id and mark. A forbidden one is counted and logged."""
        config = self._config
        try:
            check_topic(message.topic, config.max_topic)
        except BadTopic as error:
            return errors.BAD_TOPIC, str(error)
        if len(message.payload) > config.max_payload:
            return errors.TOO_LARGE, f"the payload has {len(message.payload)} bytes, the limit is {config.max_payload}"
        size = len(message.publisher)
        if 4 * size > config.max_name and len(message.publisher.encode()) > config.max_name:
            return errors.BAD_MESSAGE, f"publisher has more than {config.max_name} bytes in UTF-8"
        if "\0" in message.publisher:
            return errors.BAD_MESSAGE, "publisher contains U+0000, which parts it from the identity of its client"
        access = connection.access
        if access is not None and not access.allows("publish", message.topic):
            self._identities.record_not_allowed(connection, "publish", message.topic)
            return errors.NOT_ALLOWED, "this client may not publish to the topic"
        return None

    def _refuse(
        self, connection: ClientConnection, message: Publish, code: str, text: str, retry_after: float | None = None
    ) -> None:
        """Send the client the refusal of a publication: `nack` for QoS 1, else `error`. `retry_after`, in seconds, is
        for `nack` only."""
        if message.qos == 1:
            nack = Nack(message.topic, message.publisher, message.id, code, text, retry_after)
            self._delivery.reply(connection, nack)
        else:
            self._delivery.reply(connection, Error(code, text, topic=message.topic))
