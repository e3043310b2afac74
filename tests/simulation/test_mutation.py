"""The mutation tool finds the places of a module that it can change, changes one at a time, and knows which tests
execute a line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from migratory_mutation import sampling
from migratory_mutation.sites import sites
from migratory_simulation import patches, planted

SOURCE = '''
def f(a: int, b: int = 3) -> int:
    """Says 1 < 2."""
    must(a < b, "rule 5")
    if a <= b and not done(a):
        return min(a, b)
    self.count += 1
    self.note("info", x=1)
    self.send(a)
    return a - b  # é < 7
'''


def test_sites_cover_every_kind_of_change() -> None:
    titles = [site.title for site in sites(SOURCE)]
    assert titles == [
        "a <= b and (not done(a)) -> False",
        "and -> or",
        "<= -> <",
        "not -> ",
        "min -> max",
        "+= -> -=",
        "1 -> 2",
        "self.send(a) -> pass",
        "- -> +",
    ]


def test_each_site_changes_one_place_and_compiles() -> None:
    for path in (patches.ROOT / sampling.CORES["logic"]).rglob("d*.py"):
        source = path.read_text()
        mutations = sites(source)
        assert mutations
        for site in mutations:
            changed = site.applied(source)
            assert changed != source
            assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), site
            assert source.splitlines()[site.line - 1].strip() == site.text


def test_sample_depends_on_its_seed_and_can_grow() -> None:
    few = sampling.draw("edge", 5, 1)
    assert sampling.draw("edge", 8, 1)[:5] == few
    assert sampling.draw("edge", 5, 2) != few
    assert all(mutant.file.startswith(sampling.CORES["edge"]) for mutant in few)


def test_every_explanation_names_an_existing_site() -> None:
    for file, line, change in sampling.explained():
        keys = {(site.text, site.title) for site in sites((patches.ROOT / file).read_text())}
        assert (line, change) in keys, f"{file}: {line}: {change} is no site any more"


def test_every_explanation_has_a_reason(tmp_path: Path) -> None:
    assert all(reason.strip() for reason in sampling.explained().values())
    assert sampling.explained(tmp_path / "none.toml") == {}


def test_mutant_is_tried_with_tests_and_then_with_the_simulation() -> None:
    file = "broker/migratory_broker/core/logic/balancing/shares.py"
    site = next(site for site in sites((patches.ROOT / file).read_text()) if "-> +" in site.title)
    with planted.fresh_processes(1) as pool:
        verdicts = [
            pool.submit(sampling.judge, sampling.Mutant(file, site), tests, 0).result()
            for tests in (["tests/unit/core/logic/test_shares.py"], [])
        ]
    assert [verdict.by for verdict in verdicts] == ["unit", ""]
    assert verdicts[0].said.startswith("tests/unit/core/logic/test_shares.py::")


@pytest.mark.parametrize("core", sampling.CORES)
def test_cores_have_many_sites(core: str) -> None:
    assert len(sampling.draw(core, 10**6, 1)) > 300
