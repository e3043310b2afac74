"""A real Spark cluster for tests: a standalone master and one worker of one core, on ports of this machine. They end
with the test."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from migratory_local.demo.report_job import JAVA_OPTIONS
from migratory_local.processes.java import find_java, spark_home
from migratory_local.processes.network import LOOPBACK, free_ports

from migratory_testing.waiting import poll

LIMIT = 600.0
"""Seconds for an application. It takes half a minute on a machine with little to do, and took three on one whose load
was ten times its cores."""


def pyspark_home() -> Path:
    """Return the folder of PySpark, which has Spark's jars and programs."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def spark_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a program that uses Spark: nothing of this process's Python, and a Java that starts
    quickly."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    return {
        **inherited,
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": str(spark_home(find_java(), folder)),
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "SPARK_LOCAL_IP": LOOPBACK,
    }


class StandaloneCluster:
    """A master and a worker; `with` starts and ends them. Executors run in the folder `work`, as processes of their
    own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.work = folder / "work"
        self._folder = folder
        self._port = free_ports(1)[0]
        self.url = f"spark://{LOOPBACK}:{self._port}"
        self.environment = {
            **spark_environment(folder), "SPARK_HOME": str(pyspark_home()), "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_CONF_DIR": str(folder),
        }  # fmt: skip
        self._processes: list[subprocess.Popen[bytes]] = []

    def submit(self, python: Path, package: Path, program: Path, *arguments: str) -> str:
        """Run a program with spark-submit, with the package (a zip file) on driver and executors, by this interpreter.
        Return what it prints. Raise AssertionError with its errors if it fails."""
        sizes = ["--driver-memory", "512m", "--executor-memory", "512m"]
        options = ["--master", self.url, "--py-files", str(package), *sizes, "--conf", "spark.ui.enabled=false"]
        done = subprocess.run(
            [str(pyspark_home() / "bin" / "spark-submit"), *options, str(program), *arguments],
            env={**self.environment, "PYSPARK_PYTHON": str(python)}, capture_output=True, text=True, timeout=LIMIT,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def __enter__(self) -> Self:
        address = ["--host", LOOPBACK, "--webui-port", "0"]
        self._start("master.Master", *address, "--port", str(self._port))
        poll(self._answers, "the master accepts connections", 120)
        self._start("worker.Worker", *address, "--cores", "1", "--memory", "1g", "--work-dir", str(self.work), self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()  # the worker ends its executors
            process.wait(30)

    def _start(self, name: str, *arguments: str) -> None:
        command = [str(pyspark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def _answers(self) -> bool:
        assert self._processes[0].poll() is None, (self._folder / "master.Master.log").read_text()
        with socket.socket() as connection:
            return connection.connect_ex((LOOPBACK, self._port)) == 0
