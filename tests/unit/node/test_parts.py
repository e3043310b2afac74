"""What of the images, the chart and the test node can be told without any of them running."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from migratory_node.binaries import pause_image
from migratory_node.places import NodeError, Places
from migratory_node.processes import Processes
from migratory_node.rendered import CHART, readme

ROOT = Path(__file__).parents[3]


def test_the_charts_readme_is_made_of_its_values() -> None:
    assert (CHART / "README.md").read_text() == readme(), "run `make manifests`"


def test_an_extras_libraries_are_listed_with_those_of_the_extras_that_it_names() -> None:
    script = ROOT / "docker" / "requirements.py"
    listed = subprocess.run(
        [sys.executable, str(script), "operator"], capture_output=True, text=True, check=True, timeout=30
    ).stdout.splitlines()
    names = {line.split(">")[0] for line in listed}
    assert {"aiohttp", "msgspec", "kopf", "lightkube", "pydantic", "PyYAML"} <= names
    assert not [line for line in listed if line.startswith("migratory")]
    assert "pyspark" not in names


def test_the_pause_image_is_as_docker_saves_them(tmp_path: Path) -> None:
    binary = tmp_path / "pause"
    binary.write_bytes(b"binary")
    with tarfile.open(fileobj=io.BytesIO(pause_image(binary))) as image:

        def read(name: str) -> bytes:
            found = image.extractfile(name)
            assert found is not None
            return found.read()

        (manifest,) = json.loads(read("manifest.json"))
        config = json.loads(read(manifest["Config"]))
        (layer,) = manifest["Layers"]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(read(layer)).hexdigest()}"]
        with tarfile.open(fileobj=io.BytesIO(read(layer))) as files:
            assert files.getmember("pause").mode == 0o755


def test_a_process_is_found_again_by_others_and_ended(tmp_path: Path) -> None:
    Processes(tmp_path).start("sleeper", ["sleep", "60"])
    again = Processes(tmp_path)
    assert again.running("sleeper")
    again.stop("sleeper")
    assert not again.running("sleeper")


def test_a_process_id_that_another_process_has_now_is_not_believed(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    (tmp_path / "other.pid").write_text("1 12345\n")
    assert not processes.running("other")
    processes.stop("other")


def test_a_process_that_ends_early_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("short", [sys.executable, "-c", "print('no port 7')"])
    with pytest.raises(NodeError, match=r"(?s)short ended before there was an answer.*no port 7"):
        processes.wait("an answer", lambda: False, 30, "short")


def test_the_node_lies_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIGRATORY_CLUSTER_HOME", str(tmp_path))
    assert Places.usual().kubeconfig == tmp_path / "node" / "kubeconfig"
