"""Work beside other tests at the lowest priority: `prepare`, also in the script of CI, and `planted` in `make test`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from migratory_node import __main__ as node
from migratory_node import docker_engine
from migratory_node.paths import NodeError, NodePaths

ROOT = Path(__file__).parents[3]
SHOW = """
import os
import signal
from pathlib import Path
from migratory_node.__main__ import yield_cores
yield_cores()
group = Path("/proc/self/autogroup")
print(os.nice(0), group.read_text().split()[-1] if group.exists() else "19")
"""


def test_yield_cores_lowers_the_priority_of_process_and_session() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")},
        start_new_session=True, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert shown.stdout.split() == ["19", "19"]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("failing", ["build_images", "build_programs", ""])
def test_prepare_stops_an_engine_that_it_started_when_it_fails(
    monkeypatch: pytest.MonkeyPatch, there: bool, failing: str
) -> None:
    ended: list[NodePaths] = []

    def make(name: str) -> None:
        if name == failing:
            raise NodeError(f"no {name}")

    monkeypatch.setattr(docker_engine, "running", lambda paths: there)
    monkeypatch.setattr(docker_engine, "stop", ended.append)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    for name in ("build_images", "build_programs"):
        monkeypatch.setattr(node, name, lambda name=name: make(name))
    result = CliRunner().invoke(node.main, ["prepare"], standalone_mode=False)
    assert isinstance(result.exception, NodeError if failing else type(None))
    assert bool(ended) == (bool(failing) and not there)


def test_exit_on_signal_ignores_later_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first signal the process exits with 128 plus its number, and ignores the same signal from then on,
    because it may arrive again through `make` while the engine stops."""
    handlers: dict[int, object] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    with pytest.raises(SystemExit) as exit_info:
        node._exit_on_signal(signal.SIGTERM, None)
    assert exit_info.value.code == 143
    assert handlers == {signal.SIGTERM: signal.SIG_IGN}


# ---- the script of CI, with a `make` that records its targets --------------------------------------------------------

MAKE = """\
#!/bin/sh
echo "$1" >>"$CALLS"
case "$1" in
cluster-prepare) echo $$ >"$CALLS.pid"; echo "as prepared"; sh -c "$PREPARE" ;;
test) sh -c "$TEST" ;;
esac
"""


def ci(folder: Path, prepare: str, test: str) -> tuple[int, list[str], str]:
    """Run the script of CI with a fake `make`, whose targets `cluster-prepare` and `test` run these shell commands.
    Return the exit code, the targets that ran, and the output."""
    make = folder / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    calls = folder / "calls"
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls), "PREPARE": prepare, "TEST": test}
    done = subprocess.run(
        [str(ROOT / ".ci" / "run")], env={**environment, "TMPDIR": str(folder)}, check=False, timeout=30,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, calls.read_text().split(), done.stdout


def test_ci_runs_tests_while_it_prepares(tmp_path: Path) -> None:
    begun = f"until [ -e {tmp_path}/calls.pid ]; do sleep 0.01; done"
    code, targets, output = ci(
        tmp_path, prepare=f"until grep -q ^test$ {tmp_path}/calls; do sleep 0.01; done", test=begun
    )
    assert (code, targets[0], sorted(targets[1:3]), targets[3:]) == (
        0, "debian", ["cluster-prepare", "test"], ["cluster-test"],
    )  # fmt: skip
    assert "as prepared" in output


def test_ci_fails_with_the_output_of_a_failed_preparation(tmp_path: Path) -> None:
    code, targets, output = ci(tmp_path, prepare="echo no compiler; exit 3", test="true")
    assert code != 0
    assert "cluster-test" not in targets
    assert "no compiler" in output


def test_ci_stops_the_preparation_when_tests_fail(tmp_path: Path) -> None:
    begun = f"until [ -e {tmp_path}/calls.pid ]; do sleep 0.01; done; exit 5"
    began = time.monotonic()
    code, targets, output = ci(tmp_path, prepare="sleep 25", test=begun)
    assert (code, "cluster-test" in targets) == (5, False)
    assert time.monotonic() - began < 20
    assert "as prepared" in output
    assert not Path("/proc", (tmp_path / "calls.pid").read_text().strip()).exists()


# ---- `make test`, with a `make` that records its targets -------------------------------------------------------------


@pytest.mark.parametrize(
    ("planted", "integration", "fails"),
    [("sleep 0.2", "true", False), ("sleep 0.2; exit 3", "true", True), ("sleep 25", "exit 3", True)],
    ids=["both pass", "planted fails", "integration fails"],
)
def test_planted_faults_run_beside_the_integration_tests(
    tmp_path: Path, planted: str, integration: str, fails: bool
) -> None:
    make = tmp_path / "make"
    make.write_text(
        "#!/bin/sh\n"
        "case $2 in\n"
        f"planted) nice >{tmp_path}/nice; echo of planted; touch {tmp_path}/begun; {planted} ;;\n"
        f"integration-together) until [ -e {tmp_path}/begun ]; do sleep 0.01; done; {integration} ;;\n"
        f"integration-alone) touch {tmp_path}/alone ;;\n"
        "esac\n"
    )
    make.chmod(0o755)
    targets = ("check", "unit", "fuzz-check", "model", "compiled-check", "sim")
    before = [word for target in targets for word in ("-o", target)]  # count as made
    began = time.monotonic()
    done = subprocess.run(
        ["make", *before, "test", f"MAKE={make}"], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert bool(done.returncode) == fails, done.stderr
    assert "of planted" in done.stdout
    assert (tmp_path / "nice").read_text().strip() == "19"
    assert (tmp_path / "alone").exists() != fails
    assert time.monotonic() - began < 20
