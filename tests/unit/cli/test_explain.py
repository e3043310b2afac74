"""`migratory explain`: the decision about a token, and the reason."""

from __future__ import annotations

import re
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from migratory_broker.runtime.security.credentials import MAX_DOCUMENT
from migratory_cli.main import main
from migratory_testing.tokens import SECRET, digest, key_set, public_jwk, sign

HEAD = "apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: q}\n"
RULES = """
    rules:
      - {topics: ["quotes/**"], allow: [subscribe, history], claims: {role: [trader]}}
      - {topics: [public], allow: [subscribe], anonymous: true}
"""


def explain(tmp_path: Path, security: str, *options: str, head: str = HEAD) -> tuple[int, str]:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"{head}spec:\n  security:\n{security}" if security else head)
    result = CliRunner().invoke(main, ["explain", "-f", str(path), *options], env={"MIGRATORY_TOKEN": ""})
    return result.exit_code, result.output


def token(**claims: object) -> str:
    return sign({"sub": "ann", "role": "trader", "exp": time.time() + 380, **claims})


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return f"    tokens: {{keys: [{{algorithms: [HS256], file: '{path}'}}], revokedFile: '{tmp_path}/revoked'}}" + RULES


def test_decisions_name_their_rule(tmp_path: Path, keys: str) -> None:
    file = tmp_path / "token"
    file.write_text(token() + "\n")
    code, output = explain(tmp_path, keys, "--token-file", str(file), "-t", "quotes/eur", "-t", "orders")
    assert code == 1
    unread, accepted, *decisions = output.splitlines()
    assert unread.startswith("the list of revoked tokens is not used: ")
    assert re.fullmatch(r"accepted: subject ann, ends in 3\d\d s", accepted)
    assert decisions == [
        "subscribe quotes/eur: allowed by spec.security.rules[0]",
        "publish quotes/eur: denied: nothing allows it",
        "history quotes/eur: allowed by spec.security.rules[0]",
        "subscribe orders: denied: nothing allows it",
        "publish orders: denied: nothing allows it",
        "history orders: denied: nothing allows it",
    ]
    code, output = explain(tmp_path, keys, "--token", token(), "-t", "quotes/eur", "-o", "subscribe")
    assert code == 0
    (tmp_path / "revoked").write_text('{"tokens": ["7"]}')
    assert explain(tmp_path, keys, "--token", token(jti="7")) == (1, "refused: the token was revoked\n")
    assert explain(tmp_path, keys, "--token", token(exp=1)) == (
        1,
        "refused: the token has expired; connect with a new one\n",
    )


def test_client_without_a_token(tmp_path: Path, keys: str) -> None:
    (tmp_path / "revoked").write_text("")
    assert explain(tmp_path, keys) == (1, "refused: a token is required\n")
    code, output = explain(tmp_path, keys + "    anonymous: true\n", "-t", "public", "-o", "subscribe")
    assert (code, output) == (
        0,
        "accepted: a client without a token\nsubscribe public: allowed by spec.security.rules[1]\n",
    )
    code, output = explain(tmp_path, RULES + "    anonymous: true\n", "-t", "public", "-o", "publish")
    assert (code, output.splitlines()[1]) == (1, "publish public: denied: nothing allows it")
    assert explain(tmp_path, "")[1].startswith("allowed: the cluster has no tokens and no rules")


def test_keys_of_a_secret_are_given_as_a_file(tmp_path: Path, keys: str) -> None:
    secret = (
        "    tokens: {keys: [{algorithms: [HS256], secret: {name: jwt, key: k}}], static: [{subject: meter, sha256: "
    )
    secret += digest("static") + "}]}" + RULES
    code, output = explain(tmp_path, secret, "--token", token())
    assert code == 1
    assert output.startswith("spec.security.tokens.keys[0] is not used: ")
    assert explain(tmp_path, secret, "--token", "static")[1].endswith("accepted: subject meter, does not expire\n")
    code, output = explain(tmp_path, secret, "--token", token(), "--keys", str(tmp_path / "secret"))
    assert code == 0
    assert output.startswith("accepted: subject ann, ends in 3")


def explain_with_url(tmp_path: Path, status: int, body: bytes) -> tuple[int, str]:
    """Explain a good token to a cluster whose keys are at a URL that answers once, with this status and body. A
    redirect leads to the same server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/keys" else 200)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/keys"
        signed = sign({"sub": "ann", "exp": time.time() + 300}, "ES256", "a")
        answer = explain(tmp_path, f"    tokens: {{keys: [{{algorithms: [ES256], url: '{url}'}}]}}", "--token", signed)
        server.shutdown()
        thread.join()
    return answer


def test_keys_of_a_url_are_fetched(tmp_path: Path) -> None:
    code, output = explain_with_url(tmp_path, 200, key_set(public_jwk("ES256", "a")))
    assert code == 0, output
    assert output.startswith("accepted: subject ann, ends in ")


@pytest.mark.parametrize(
    ("status", "padding", "reason"),
    [
        (200, MAX_DOCUMENT, f"more than {MAX_DOCUMENT} bytes"),  # the keys are whole in what fits
        (302, 0, "HTTP status 302"),
        (203, 0, "HTTP status 203"),
        (503, 0, "HTTP status 503"),
    ],
)
def test_keys_that_a_broker_would_not_take_from_a_url_are_not_used(
    tmp_path: Path, status: int, padding: int, reason: str
) -> None:
    code, output = explain_with_url(tmp_path, status, key_set(public_jwk("ES256", "a")) + b" " * padding)
    assert code == 1
    assert output.splitlines()[0] == f"spec.security.tokens.keys[0] is not used: {reason}"


def test_files_that_a_broker_would_not_use_are_not_used(tmp_path: Path, keys: str) -> None:
    for content, reason in (
        (b" " * (MAX_DOCUMENT + 1), f"more than {MAX_DOCUMENT} bytes"), (b'{"tokens": [', "truncated"),
    ):  # fmt: skip
        (tmp_path / "revoked").write_bytes(content)
        code, output = explain(tmp_path, keys, "--token", token())
        assert (code, output.startswith("the list of revoked tokens is not used: ")) == (0, True), output
        assert reason in output.splitlines()[0]
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * (MAX_DOCUMENT + 1))
    code, output = explain(tmp_path, keys, "--token", token())
    assert (code, output.splitlines()[0]) == (
        1, f"spec.security.tokens.keys[0] is not used: more than {MAX_DOCUMENT} bytes",
    )  # fmt: skip
    for content, reason in ((b"x" * (MAX_DOCUMENT + 1), f"more than {MAX_DOCUMENT} bytes"), (b"short", "5 bytes")):
        (tmp_path / "given").write_bytes(content)
        code, output = explain(tmp_path, keys, "--token", token(), "--keys", str(tmp_path / "given"))
        assert (code, f"Error: --keys {tmp_path / 'given'}: " in output, reason in output) == (2, True, True), output


def test_wrong_usage(tmp_path: Path, keys: str) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    for options, text in (
        (("--token", "x", "--token-file", str(empty)), "give one of them"),
        (("--token-file", str(empty)), "is empty"),
        (("--token-file", str(tmp_path / "none")), "cannot read"),
    ):
        code, output = explain(tmp_path, keys, *options)
        assert (code, text in output) == (2, True), output
    code, output = explain(tmp_path, "    rules: [{topics: [a*], allow: [publish]}]\n")
    assert code == 2
    assert "spec.security.rules[0].topics[0]" in output
    code, output = explain(tmp_path, keys, head="a: [\n")
    assert code == 2


@pytest.mark.parametrize(
    "spec",
    [
        "{securty: {}}",
        "{security: {tokens: {audiance: a, keys: [{algorithms: [HS256], file: /k}]}}}",
        "{security: {rule: []}}",
        "{security: {rules: [{topics: [a], allow: [publish], claim: {role: [x]}}]}}",
        "{security: {rules: [{topics: [a], allow: [publish], zz: 1}]}}",
    ],
)
def test_up_and_explain_refuse_the_same_files(tmp_path: Path, spec: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"{HEAD}spec: {spec}\n")
    messages = []
    for command in ("up", "explain"):
        result = CliRunner().invoke(main, [command, "-f", str(path)])
        assert result.exit_code == 2, result.output
        messages.append(result.output[result.output.index("Error: ") :])
    assert messages[0] == messages[1]


def test_fields_without_effect_are_reported(tmp_path: Path) -> None:
    code, output = explain(tmp_path, "    anonymous: false\n  zz: 1\n")
    assert code == 0
    assert "warning: spec.zz is not known and has no effect\n" in output
