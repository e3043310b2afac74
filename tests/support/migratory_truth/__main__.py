"""The command line of reports with known truth, `python -m migratory_truth` (`make truth`)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from migratory_local.processes.java import find_java, spark_home
from migratory_spark.session import local_session

from migratory_truth.data_sets import make_data_set
from migratory_truth.readings import check


@click.command()
@click.option("--sets", type=click.IntRange(min=1), default=200, show_default=True, help="How many data sets.")
@click.option("--first", type=int, default=1, show_default=True, help="The number of the first one.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result to this file.")
def main(sets: int, first: int, json_file: Path | None) -> None:
    """Make reports of random data sets whose counts are known, from Parquet and from a Prometheus, in one Spark
    session. Exit with 1 if a count is wrong, or if the two reports of a data set differ."""
    results = []
    with TemporaryDirectory(prefix="migratory-truth-") as name:
        work = Path(name)
        with local_session(spark_home(find_java(), work), work, cores=2) as session:
            for number in range(first, first + sets):
                data, began = make_data_set(number), time.monotonic()
                with TemporaryDirectory(dir=work) as folder:
                    wrong = check(session, data, Path(folder))
                results.append({"set": number, "clusters": len(data.clusters), "objectives": len(data.objectives),
                                "incidents": len(data.incidents), "wrong": wrong})  # fmt: skip
                verdict = "; ".join(wrong) or "equal"
                click.echo(f"{len(results)}/{sets}, set {number}, {time.monotonic() - began:.1f} s: {verdict}")
    failed = [result["set"] for result in results if result["wrong"]]
    click.echo(f"{sets} data sets, {len(failed)} with wrong figures{': ' if failed else ''}{failed or ''}")
    if json_file is not None:
        json_file.write_text(json.dumps({"sets": sets, "first": first, "failed": failed, "results": results}, indent=1))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main(prog_name="migratory_truth")
