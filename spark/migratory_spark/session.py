"""A Spark session on this machine. The one place that sets Spark's own options."""

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
"""Most of a report's time in the JVM is starting it: the second compiler would not pay, for what is done with single
samples is done in Python's numpy. One thread that collects garbage leaves the cores to the tasks."""

_LOGGING = Path(__file__).with_name("log4j2.properties")


@contextmanager
def local_session(
    java_home: Path | None = None, work_dir: Path | None = None, cores: int | None = None, memory: str | None = None
) -> Iterator[SparkSession]:
    """A session on `cores` local cores (all when None), ended with the block. `memory` is the JVM's, such as "4g"
    (1 GiB when None); what does not fit into it goes to disk.

    `java_home` names the JRE to use where the machine's own `JAVA_HOME` is not to be taken. Spark's scratch files go
    below `work_dir`. Raises what PySpark raises when no usable Java is found.
    """
    # Workers must be the same interpreter as this one, with the same packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The driver is reached on loopback only, whatever this machine's name resolves to.
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
        # Windows are computed in UTC; a zone is a matter of display.
        .config("spark.sql.session.timeZone", "UTC")
        # Few samples become one task, many become tasks of this size, which fit into memory beside one another.
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
    """Ended with the block, so that executors go whatever happened. Without `spark-submit` it is a local one."""
    session = SparkSession.builder.appName(name).getOrCreate()
    try:
        # What results depend on is not the submitter's to say.
        session.conf.set("spark.sql.session.timeZone", "UTC")
        session.conf.set("spark.sql.ansi.enabled", "true")
        yield session
    finally:
        session.stop()


def _end_java() -> None:
    """PySpark keeps its Java process until the interpreter ends; a report that is done leaves none behind."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    process = gateway.proc
    # The gateway reads its standard input and ends when that does.
    process.stdin.close()
    try:
        process.wait(timeout=10)
    except TimeoutExpired:
        process.kill()
        process.wait(timeout=10)
