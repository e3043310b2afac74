"""Opens Spark sessions: on this machine, and as submitted by `spark-submit`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import TimeoutExpired

from pyspark import SparkContext
from pyspark.sql import SparkSession

_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of the JVM. Most of a report's time in the JVM is its start, and work on single samples is done in numpy, so
the second compiler would not pay. One thread for garbage collection leaves the cores to the tasks."""

_LOGGING = Path(__file__).with_name("log4j2.properties")


@contextmanager
def local_session(
    java_home: Path | None = None, work_dir: Path | None = None, cores: int | None = None, memory: str | None = None
) -> Iterator[SparkSession]:
    """A context with a Spark session on this machine. At its end, stop the session and the Java process.

    Set PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON, SPARK_LOCAL_IP (if unset) and, with `java_home`, JAVA_HOME in this
    process's environment; they stay set. Raise PySpark's error if no usable Java is found.

    :param java_home: the JRE to use instead of the environment's `JAVA_HOME`.
    :param work_dir: folder of Spark's scratch files and warehouse; None for Spark's defaults.
    :param cores: local cores; None for all.
    :param memory: memory of the JVM, such as "4g"; None for 1 GiB. Data that does not fit goes to disk.
    """
    # Workers must run the same interpreter with the same packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The driver listens on loopback only, whatever the machine's name resolves to.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    builder = (
        SparkSession.builder.master(f"local[{cores}]" if cores else "local[*]")
        .appName("migratory-sla")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # Windows are computed in UTC; time zones are applied by `times.py`.
        .config("spark.sql.session.timeZone", "UTC")
        # Few samples become one task, many become tasks of this size, which fit into memory together.
        .config("spark.sql.shuffle.partitions", "64")
        .config("spark.sql.adaptive.coalescePartitions.parallelismFirst", "false")
        .config("spark.sql.adaptive.advisoryPartitionSizeInBytes", "64m")
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.driver.extraJavaOptions", f"{_JAVA} -Dlog4j2.configurationFile={_LOGGING.as_uri()}")
    )
    if memory is not None:
        builder = builder.config("spark.driver.memory", memory)
    if work_dir is not None:
        builder = builder.config("spark.local.dir", str(work_dir)).config(
            "spark.sql.warehouse.dir", str(work_dir / "warehouse")
        )
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        _end_java()


@contextmanager
def submitted_session(name: str) -> Iterator[SparkSession]:
    """A context with the session of `spark-submit`, or a local one if the program was started without it. At its end,
    stop the session.

    The submitter chooses master, memory and executors. The session's time zone (UTC) and ANSI SQL are set here,
    whatever the submitter chose.

    :param name: the application's name in Spark.
    """
    session = SparkSession.builder.appName(name).getOrCreate()
    try:
        # Results depend on these settings, so the submitter's are overridden.
        session.conf.set("spark.sql.session.timeZone", "UTC")
        session.conf.set("spark.sql.ansi.enabled", "true")
        yield session
    finally:
        session.stop()


def _end_java() -> None:
    """Stop the Java process, which PySpark would otherwise run until the interpreter ends. Kill it if it has not ended
    after 10 s. Do nothing if there is none."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    process = gateway.proc
    # The gateway reads its standard input and exits when that ends.
    process.stdin.close()
    try:
        process.wait(timeout=10)
    except TimeoutExpired:
        process.kill()
        process.wait(timeout=10)
