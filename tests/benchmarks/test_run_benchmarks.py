"""Finding, checking and writing of benchmark results, and the whole command in its quick form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import run

ROOT = Path(__file__).resolve().parents[2]


def an_outcome():
    return {
        "claim": "Fast.",
        "rows": [{"name": "ours", "value": 200.0, "unit": "steps/s"}],
        "ratios": [
            {"name": "ours over theirs", "value": 2.0, "target": 1.5},
            {"name": "ours over others", "value": 1.0, "target": 1.5},
            {"name": "for information", "value": 0.5, "target": None},
        ],
        "notes": ["a note"],
    }


def a_result():
    machine = {"cpu": "Some CPU", "flags": ["avx2"], "cpus": 2, "memory_gib": 8, "system": "Linux"}
    versions = {"versions": {"tensorflow": "2.15.1"}, "peer_versions": {"sbx-rl": "0.28.0"}}
    where = {"machine": machine, **versions, "commit": "abc", "date": "2026-01-01"}
    return {**where, "secs": 12.0, "outcome": an_outcome()}


def test_modules_with_a_main_are_benchmarks(tmp_path):
    (tmp_path / "slow.py").write_text("def main():\n    pass\n")
    (tmp_path / "helper.py").write_text("def mainly():\n    def main():\n        pass\n")
    (tmp_path / "run.py").write_text("def main():\n    pass\n")
    assert run.find_benchmarks(tmp_path) == ["slow"]


def test_every_benchmark_of_this_repository_states_a_claim():
    names = run.find_benchmarks()
    assert "whole_system" in names
    for name in names:
        first, second = (run.FOLDER / f"{name}.py").read_text().splitlines()[:2]
        assert first.startswith('"""') and first.endswith("."), f"{name}: {first}"
        assert second in ("", '"""'), f"{name}: the claim is one line"


def test_peers_go_to_those_that_ask_for_them(tmp_path):
    (tmp_path / "with_peers.py").write_text('parser.add_argument("--peers_python")')
    (tmp_path / "alone.py").write_text("")
    start = [sys.executable, "-m"]
    assert run.command_of("with_peers", True, "/p", tmp_path) == [
        *start,
        "benchmarks.with_peers",
        "--quick",
        "--peers_python",
        "/p",
    ]
    assert run.command_of("with_peers", False, None, tmp_path) == [*start, "benchmarks.with_peers"]
    assert run.command_of("alone", False, "/p", tmp_path) == [*start, "benchmarks.alone"]


def test_table_says_which_target_was_met():
    lines = run.to_markdown({"fast": a_result()}).splitlines()
    assert "| ours over theirs | 2.00 | 1.5 met |" in lines
    assert "| ours over others | 1.00 | 1.5 **missed** |" in lines
    assert "| for information | 0.50 | |" in lines
    assert "| ours | 200 steps/s |" in lines
    assert "- 2 CPUs, Some CPU (avx2), 8 GiB; commit abc, 2026-01-01, 12 s" in lines
    assert (
        lines[0] == "Versions, unless a result names others: tensorflow 2.15.1." and "- tensorflow 2.15.1" not in lines
    )
    assert "- peers: sbx-rl 0.28.0" in lines
    assert "\n- tensorflow 2.16" in run.to_markdown(
        {"fast": a_result(), "slow": {**a_result(), "versions": {"tensorflow": "2.16"}}}
    )


def test_table_replaces_the_one_before_and_nothing_else():
    readme = f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n"
    once = run.insert_table(readme, "new")
    assert once == f"before\n{run.BEGIN}\n\nnew\n\n{run.END}\nafter\n"
    assert run.insert_table(once, "new") == once
    with pytest.raises(ValueError, match="results: end"):
        run.insert_table(f"{run.BEGIN}\nno end", "new")
    assert "new" in run.insert_table(run.README.read_text(), "new")


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--only"]])
def test_wrong_usage_is_told(arguments):
    done = subprocess.run([ROOT / "run_benchmarks.sh", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_benchmarks_run_quickly_without_peers():
    # Those with real runs take minutes: ./run_benchmarks.sh --quick has all of them.
    names = ["many_steps", "replay", "update", "worker_steps"]
    only = [word for name in names for word in ("--only", name)]
    results = {path: path.read_text() for path in [run.README, *run.RESULTS.glob("*.json")]}
    environ = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    process = subprocess.Popen(
        [ROOT / "run_benchmarks.sh", "--quick", "--no-peers", *only],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        output, _ = process.communicate(timeout=500)
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert process.returncode == 0
    for name in names:
        assert f"### {name}" in output
    assert results == {path: path.read_text() for path in results}, "nothing in the repository has changed"
