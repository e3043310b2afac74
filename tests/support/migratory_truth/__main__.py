"""The command line of reports with known truth, `python -m migratory_truth` (`make truth`)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from migratory_local.processes.java import find_java, spark_home
from migratory_spark.session import local_session

from migratory_truth.data_sets import make_data_set
from migratory_truth.readings import check


@click.command()
@click.option("--sets", type=click.IntRange(min=1), default=200, show_default=True, help="How many data sets.")
@click.option("--first", type=int, default=1, show_default=True, help="The number of the first one.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the results to this file, after each data set."
)
@click.option("--resume", is_flag=True, help="Keep the right results that the file of --json has of an earlier run.")
def main(sets: int, first: int, json_file: Path | None, resume: bool) -> None:
    """Make reports of random data sets whose counts are known, from Parquet and from a Prometheus, in one Spark
    session. Exit with 1 if a count is wrong, or if the two reports of a data set differ."""
    if resume and json_file is None:
        raise click.UsageError("--resume needs --json")
    wanted = range(first, first + sets)
    results = _kept(json_file) if resume and json_file is not None and json_file.exists() else {}
    open_sets = [number for number in wanted if number not in results]
    if len(open_sets) < sets:
        click.echo(f"{sets - len(open_sets)} of {sets} were right in an earlier run")
    with TemporaryDirectory(prefix="migratory-truth-") as name:
        work = Path(name)
        began = time.monotonic()
        with local_session(spark_home(find_java(), work), work, cores=2) as session:
            for done, number in enumerate(open_sets, 1):
                data, started = make_data_set(number), time.monotonic()
                with TemporaryDirectory(dir=work) as folder:
                    wrong = check(session, data, Path(folder))
                results[number] = {"set": number, "clusters": len(data.clusters), "objectives": len(data.objectives),
                                   "incidents": len(data.incidents), "wrong": wrong}  # fmt: skip
                now = time.monotonic()
                left = (now - began) / done * (len(open_sets) - done)
                click.echo(
                    f"{done}/{len(open_sets)}, set {number}, {now - started:.1f} s, {left / 60:.0f} min left: "
                    f"{'; '.join(wrong) or 'equal'}"
                )
                if json_file is not None:
                    _write(json_file, [results[each] for each in sorted(results)])
    failed = [number for number in wanted if results[number]["wrong"]]
    click.echo(f"{sets} data sets, {len(failed)} with wrong figures{': ' if failed else ''}{failed or ''}")
    raise SystemExit(bool(failed))


def _kept(json_file: Path) -> dict[int, dict[str, Any]]:
    return {result["set"]: result for result in json.loads(json_file.read_text())["results"] if not result["wrong"]}


def _write(json_file: Path, results: list[dict[str, Any]]) -> None:
    """Write the results. The file is complete at every moment."""
    part = json_file.with_name(f".{json_file.name}.part")
    failed = [result["set"] for result in results if result["wrong"]]
    part.write_text(json.dumps({"sets": len(results), "failed": failed, "results": results}, indent=1))
    part.replace(json_file)


if __name__ == "__main__":
    main(prog_name="migratory_truth")
