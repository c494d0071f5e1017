"""Runs the benchmarks one after the other and writes their results as JSON and as a table in benchmarks/README.md.

    python -m benchmarks.run [--quick] [--only NAME ...] [--peers_python PYTHON] [--output FOLDER]

Every module of this folder with a `main` is a benchmark. `--quick` shows that they run and writes nothing into the
repository.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.outcome import parse_args
from benchmarks.processes import ROOT, end_on_sigterm, run_json
from tfagents_system.machine.files import write_atomically
from tfagents_system.run_files.run_directory import git_commit

FOLDER = ROOT / "benchmarks"
README = FOLDER / "README.md"
RESULTS = FOLDER / "results"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

_MODULE_SECS = {True: 170.0, False: 1200.0}  # that one module may take, quick or not
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
_OUR_PACKAGES = ("tensorflow", "tf-agents", "dm-reverb", "numpy", "gymnasium", "mujoco")
_PEER_PACKAGES = ("sbx-rl", "jax", "stable_baselines3", "torch", "mujoco")


# Finding and running.


def find_benchmarks(folder: Path = FOLDER) -> list[str]:
    """Names of the modules with a `main`, in alphabetical order."""
    return [path.stem for path in sorted(folder.glob("*.py")) if path.stem != "run" and _has_main(path.read_text())]


def _has_main(source: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in ast.parse(source).body)


def command_of(name: str, quick: bool, peers_python: str | None, folder: Path = FOLDER) -> list[str]:
    """How a benchmark is started; the peers' Python goes to those that have an option for it."""
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    if quick:
        command.append("--quick")
    if peers_python is not None and '"--peers_python"' in (folder / f"{name}.py").read_text():
        command += ["--peers_python", peers_python]
    return command


def run_benchmark(name: str, quick: bool, peers_python: str | None) -> dict[str, Any]:
    """The outcome of one benchmark.

    Raises:
      RuntimeError: It failed, took too long, or printed no JSON.
    """
    command = command_of(name, quick, peers_python)
    return dict(run_json(command, _MODULE_SECS[quick], folder=ROOT, show_progress=True))


# Where it was measured.


def describe_machine(cpuinfo: str, cpus: Sequence[int]) -> dict[str, Any]:
    """CPU model, the flags that matter here, and how many CPUs may be used.

    Args:
      cpuinfo: Text of /proc/cpuinfo.
      cpus: CPUs that this process may use.
    """
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    return {
        "cpu": fields.get("model name", platform.machine()),
        "flags": [flag for flag in _CPU_FLAGS if flag in flags],
        "cpus": len(cpus),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(terse=True),
    }


def our_versions() -> dict[str, str]:
    return {"python": platform.python_version(), **_versions(_OUR_PACKAGES)}


def peer_versions(peers_python: str) -> dict[str, str]:
    """Versions of the packages in the peers' environment."""
    program = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    installed = run_json([peers_python, "-c", program], 60.0)
    return {name: installed[name] for name in _PEER_PACKAGES if name in installed}


def _versions(packages: Sequence[str]) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}


# Writing.


def to_markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The tables of all results, by name of the benchmark."""
    versions = [_listed(result["versions"]) for _, result in sorted(results.items())]
    sections = [_section(name, result, versions[0]) for name, result in sorted(results.items())]
    return "\n\n".join([f"Versions, unless a result names others: {versions[0]}.", *sections])


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def _section(name: str, result: Mapping[str, Any], usual_versions: str) -> str:
    outcome, machine = result["outcome"], result["machine"]
    versions, peers = _listed(result["versions"]), _listed(result["peer_versions"])
    flags = " ".join(machine["flags"]) or "no AVX"
    lines = [f"### {name}", "", outcome["claim"], ""]
    if outcome["ratios"]:
        lines += ["| ratio | measured | target |", "|---|---:|---:|"]
        lines += [_ratio_line(ratio) for ratio in outcome["ratios"]]
        lines.append("")
    lines += ["| figure | value |", "|---|---:|"]
    lines += [f"| {row['name']} | {_number(row['value'])} {row['unit']} |" for row in outcome["rows"]]
    lines += ["", *(f"- {note}" for note in dict.fromkeys(outcome["notes"]))]
    lines.append(
        f"- {machine['cpus']} CPUs, {machine['cpu']} ({flags}), {machine['memory_gib']} GiB; "
        f"commit {result['commit']}, {result['date']}, {result['secs']:.0f} s"
    )
    lines += [f"- {versions}"] * (versions != usual_versions) + [f"- peers: {peers}"] * bool(peers)
    return "\n".join(lines)


def _ratio_line(ratio: Mapping[str, Any]) -> str:
    target = ratio["target"]
    if target is None:
        return f"| {ratio['name']} | {ratio['value']:.2f} | |"
    verdict = "met" if ratio["value"] >= target else "**missed**"
    return f"| {ratio['name']} | {ratio['value']:.2f} | {target:g} {verdict} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def insert_table(readme: str, table: str) -> str:
    """The text with `table` between the two markers, in place of what was there.

    Raises:
      ValueError: A marker is missing.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README} must have the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = find_benchmarks()
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names, help=", ".join(names))
    parser.add_argument(
        "--peers_python", type=os.path.abspath, help="Python with SBX and Stable-Baselines3; without it, no peers"
    )
    parser.add_argument("--output", type=Path, help="folder for the JSON files; README.md is then left as it is")
    return parse_args(parser)


def main() -> int:
    end_on_sigterm()
    arguments = parse_arguments()
    peers_python = arguments.peers_python
    where = {
        "machine": describe_machine(Path("/proc/cpuinfo").read_text(), sorted(os.sched_getaffinity(0))),
        "versions": our_versions(),
        "peer_versions": peer_versions(peers_python) if peers_python else {},
        "commit": git_commit() or "unknown",
    }
    results, failed = {}, []
    for name in arguments.only:
        print(f"== {name}", file=sys.stderr, flush=True)
        date, began = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), time.monotonic()
        try:
            outcome = run_benchmark(name, arguments.quick, peers_python)
        except RuntimeError as error:
            print(f"error: {name}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        results[name] = {**where, "date": date, "secs": time.monotonic() - began, "outcome": outcome}
        if arguments.output or not arguments.quick:
            text = json.dumps({"name": name, "quick": arguments.quick, **results[name]}, indent=2)
            (arguments.output or RESULTS).mkdir(parents=True, exist_ok=True)
            write_atomically((arguments.output or RESULTS) / f"{name}.json", f"{text}\n".encode())
    print(to_markdown(results))
    if results and not arguments.quick and not arguments.output:
        write_atomically(README, insert_table(README.read_text(), to_markdown(read_results(RESULTS))).encode())
    if failed:
        print(f"error: failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
