"""Errors of Spark in the jobs: turns them into one sentence that names the file or server. The sentence is made while
the session is open, because the text of an error comes from the JVM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from migratory_spark.jobs.command_line import SamplesUnreadable
from migratory_spark.prometheus.errors import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSession = Callable[[], AbstractContextManager["SparkSession"]]

_MAX_LENGTH = 600


@contextmanager
def spark_session(open_session: OpenSession) -> Iterator[SparkSession]:
    """A context with the session that `open_session` opens. Raise SamplesUnreadable, with one sentence, for every error
    of Spark, also while it starts. Raise KeyboardInterrupt instead if the error follows Ctrl-C."""
    # Within the session, too: the text of an error comes from the JVM, which ends with the session.
    with _translate_errors(), open_session() as session, _translate_errors():
        yield session


@contextmanager
def _translate_errors() -> Iterator[None]:
    """A context that raises SamplesUnreadable for errors of Spark, or KeyboardInterrupt for those that follow
    Ctrl-C."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if _follows_interrupt(error):
            raise KeyboardInterrupt from None
        raise SamplesUnreadable(f"Spark could not read the samples: {error_sentence(str(error))}") from None


def _follows_interrupt(error: BaseException | None) -> bool:
    """Return whether the error came up after Ctrl-C: PySpark cancels its jobs then, and reports them as failed."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def error_sentence(text: str) -> str:
    """Return the message of a Spark error in one line without stack traces, at most 600 characters.

    If a Python worker raised one of the product's errors (`errors.py`, `prometheus/errors.py`), that is the message;
    else it is the first line after the worker's traceback that is not indented. Without a worker, it is the first two
    lines that are no stack trace, and the last cause in the JVM's stack. If Java does not start, the sentence says so.
    """
    if "JAVA_GATEWAY_EXITED" in text:
        return "Java does not start; install Java 17 or newer, or let JAVA_HOME name one"
    _, traced, after = text.partition("Traceback (most recent call last):")
    raised = re.findall(r"^([A-Za-z_][\w.]*): (.+)$", after, re.MULTILINE) if traced else []
    own = [message for name, message in raised if re.match(r"migratory_spark\.(prometheus\.)?errors\.", name)]
    if raised:
        return one_line(own[-1] if own else raised[0][1])[:_MAX_LENGTH]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    messages = [
        line for line in lines if not line.startswith(("at ", "JVM stacktrace", "File ", "Traceback", "Caused by: "))
    ]
    return one_line(" ".join([*messages[:2], *causes[-1:]]))[:_MAX_LENGTH] or "no reason given"
