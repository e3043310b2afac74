"""The messages of `pub`."""

from __future__ import annotations

from migratory_cli.commands.pub import _describe_failure
from migratory_client import PublishError


def test_refused_publication_names_its_topic_and_explain() -> None:
    refused = PublishError("not_allowed", "this client may not publish to the topic")
    text = "this client may not publish to the topic (orders/eve): `migratory explain` says what a token allows"
    assert _describe_failure(refused, "orders/eve") == text
    assert _describe_failure(PublishError("bad_topic", "too long"), "t") == "too long"
