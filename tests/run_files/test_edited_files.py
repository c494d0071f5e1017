"""Which of the user's files a run is made of, and what was edited of them since it began."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfagents_system.run_files import edited_files, params_folder, run_inputs
from tfagents_system.run_files.edited_files import Edit
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.used_files import used_files

PARAMS = """
import importlib, arm, os.path
from wheels import turning
from pathlib import Path

ROBOT = Path(__file__).parent / "models" / "robot.xml"
gymnasium.register("Gripper-v0", entry_point="made.gripper:Gripper")
"""
FILES = {
    "params.py": PARAMS,
    "arm.py": "LENGTH = 1.0\n",
    "wheels/__init__.py": "",
    "wheels/turning.py": "def load():\n    from . import rim\n    from .deep.hub import HUB\n",
    "wheels/rim.py": "",
    "wheels/deep/__init__.py": "",
    "wheels/deep/hub.py": "HUB = open(f'{here}/hub.bin')\n",
    "wheels/flat.py": "",
    "hub.bin": "1",
    "models/robot.xml": "<include file='legs.xml'/>",
    "models/legs.xml": "<legs/>",
    "models/other.xml": "<other/>",
    "plot.py": "import arm\n",
    "made/gripper.py": "",
    "made/unmade.py": "",
    "track.csv": "0,1",
    "broken.py": "def",
    "os.py": "",
    "notes.txt": "robot.xml",
    "config.json": json.dumps({"horizon": 20, "mass": 1.0, "track": "data/track.csv"}),
}
USED = {
    "params.py", "arm.py", "os.py", "wheels/__init__.py", "wheels/turning.py", "wheels/rim.py",
    "wheels/deep/__init__.py", "wheels/deep/hub.py", "hub.bin", "models/robot.xml", "models/legs.xml",
    "made/gripper.py",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    return tmp_path / "project"


@pytest.fixture
def run(project: Path, tmp_path: Path) -> RunPaths:
    """A run that has copies of the project."""
    paths = RunPaths(tmp_path / "run")
    params_folder.copy(project, FILES, paths.params_folder)
    paths.params.write_text(PARAMS)
    paths.config.write_text(FILES["config.json"])
    kept = {"params_source": str(project / "params.py"), "params_files": digests(project)}
    paths.run_json.write_text(json.dumps(kept))
    return paths


def digests(project: Path) -> dict[str, str]:
    return params_folder.digests(project, params_folder.files_of(project))


def edits(run: RunPaths, project: Path, params: str = "params.py") -> tuple[list[str], list[str]]:
    found = edited_files.find(run, project / params, project / "config.json", lambda: digests(project))
    return [str(edit).replace(f"{project}/", "") for edit in found.used], list(found.beside)


def test_what_a_run_is_made_of_is_what_its_params_import_and_name(project: Path) -> None:
    assert used_files(project, "params.py", FILES) == USED
    assert used_files(project, "none.py", FILES) == set()
    (project / "wheels/rim.py").write_text("from ... import plot\nimport params\nfrom .... import x")  # Nowhere; round.
    assert used_files(project, "params.py", FILES) == USED
    assert used_files(project, "broken.py", FILES) == {"broken.py"}


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("importlib.import_module('plot')", {"plot.py"}),
        ("from importlib import import_module\nimport_module('made.unmade', None)", {"made/unmade.py"}),
        ("importlib.import_module(name)", set()),
        ("__import__('plot')", {"plot.py"}),
        ("import unmade\nimport sys\nsys.path.insert(0, str(Path(__file__).parent / 'made'))", {"made/unmade.py"}),
        ("HERE = os.path.join(HERE, 'x', 'wheels')\nsys.path += [HERE]\nimport flat", {"wheels/flat.py"}),
        ("import flat\nHERE = 'wheels'", set()),
        ("sorted(ROBOT.parent.glob('*.xml'))", {"models/legs.xml", "models/other.xml"}),
        ("glob.glob(f'{HERE}/models/o*.xml')", {"models/other.xml"}),
        ("glob.iglob('./**/*.csv', recursive=True)", {"track.csv"}),
        ("glob.glob('wheels/*.xml')", set()),
        ("gymnasium.make('plot:Drone-v0')", {"plot.py"}),
        ("gymnasium.make('made.unmade:my-ns/Drone-v0')", {"made/unmade.py"}),
        ("print('plot: as-is', 'plot.a-b', 'plot-2:Drone')", set()),
        ("ROBOT.parent.glob('*'), '**/*', '*.*', '[a-z]+ .py', 'a * b.py', '/'", set()),
    ],
)  # fmt: skip
def test_modules_and_files_that_are_looked_for_when_it_runs(project: Path, text: str, more: set[str]) -> None:
    (project / "params.py").write_text(PARAMS + text)
    assert used_files(project, "params.py", FILES) == USED | more


def test_what_a_module_of_a_package_or_the_json_looks_for(project: Path) -> None:
    (project / "wheels/rim.py").write_text("import importlib\nimportlib.import_module('.flat', __package__)")
    assert used_files(project, "params.py", FILES) == USED | {"wheels/flat.py"}
    (project / "config.json").write_text('{"tracks": "*.csv", "name": "[a-z]*"}')
    assert used_files(project, "none.py", FILES, project / "config.json") == {"track.csv"}


@pytest.mark.parametrize("name", sorted(set(FILES) - {"wheels/__init__.py"}))
def test_an_edit_counts_where_the_run_uses_the_file(name: str, run: RunPaths, project: Path) -> None:
    (project / name).write_text("X = 5\n")
    counts = name in USED or name in ("config.json", "track.csv")
    used, beside = edits(run, project)
    assert [one.partition(" (")[0] for one in used] == [name] * counts
    assert beside == [f"changed {name}"] * (not counts)


def test_comments_and_spaces_are_no_edits(run: RunPaths, project: Path) -> None:
    (project / "params.py").write_text("# How it walks.\n" + PARAMS.replace("arm, os.path", "arm,  os.path  # Both."))
    (project / "arm.py").write_text("LENGTH = (1.0)\n")
    (project / "config.json").write_text('{"mass": 1.0,\n "track": "data/track.csv", "horizon": 20}')
    assert edits(run, project) == ([], [])
    (project / "arm.py").write_text('"""What it is."""\nLENGTH = 1.0\n')  # May be read by the program.
    (project / "config.json").write_text('{"mass": 1, "horizon": 20}')
    assert edits(run, project) == (["config.json", "arm.py"], [])


def test_files_that_are_gone_new_or_renamed(run: RunPaths, project: Path) -> None:
    (project / "arm.py").unlink()
    (project / "plot.py").unlink()
    (project / "legs.py").write_text("")
    (project / "params.py").rename(project / "my_params.py")
    assert edits(run, project, "my_params.py") == (
        ["arm.py (gone)"],
        ["gone plot.py", "new legs.py"],
    )


def test_another_params_file_is_an_edit(run: RunPaths, project: Path) -> None:
    assert edits(run, project, "plot.py") == (["plot.py"], [])
    found = edited_files.find(run, project / "plot.py", project / "config.json")
    assert len(found.used) == 1 and not found.beside, "without the folder the two files are compared"


def test_who_changes_the_copy_of_a_run_has_edited_nothing(run: RunPaths, project: Path) -> None:
    """As the refusal of a setting that must stay proposes."""
    run.params.write_text(PARAMS + "X = 1\n")
    assert edits(run, project)[0] == ["params.py"], "what it began with is unknown"
    began = run_inputs.Inputs(project / "params.py", project / "config.json").digests_of_files()
    run.run_json.write_text(json.dumps(json.loads(run.run_json.read_text()) | {"began_with": began}))
    assert edits(run, project) == ([], [])
    (project / "params.py").write_text(PARAMS + "Y = 1\n")
    assert edits(run, project)[0] == ["params.py"]


def test_long_differences_are_cut() -> None:
    edit = Edit("a.py", [f"x{k}" for k in range(100)], [f"y{k}" if k % 10 == 3 else f"x{k}" for k in range(100)])
    whole = list(edit.diff())
    shown = edited_files.Edits([edit]).diff()
    assert shown[:24] == whole[:24] and shown[24:] == [f"... and {len(whole) - 24} lines more"]
    assert whole[:7] == ["--- a.py of the run", "+++ a.py", "@@ -3,3 +3,3 @@", " x2", "-x3", "+y3", " x4"]
    assert list(Edit("a.csv", ["1"] * 60_000, ["2"]).diff()) == ["a.csv: 60000 lines of the run, 1 now"]


def test_differences_can_be_read_in_a_terminal(run: RunPaths, project: Path) -> None:
    (project / "track.csv").write_bytes(b"\x1b[2J" + 300 * b"5")
    (project / "hub.bin").write_bytes(b"\0\x1b\xff")
    found = edited_files.find(run, project / "params.py", project / "config.json", lambda: digests(project))
    assert [edit.name.rpartition("/")[2] for edit in found.used] == ["hub.bin", "track.csv"]
    assert "\x1b" not in "".join(found.diff())
    assert f"+\\x1b[2J{152 * '5'}..." in found.diff()
