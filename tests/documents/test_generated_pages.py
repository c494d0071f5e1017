"""The reference has every command, attribute, variable, metric and file, as the code has them now."""

from __future__ import annotations

import pytest

from docs.site import generated
from tests.support.documents import ROOT
from tfagents_system.command import COMMANDS
from tfagents_system.hyperparameters import described_by
from tfagents_system.run_files import metrics
from tfagents_system.run_files.run_paths import Below, RunPaths
from tfagents_system.settings import other_libraries
from tfagents_system.settings.variables import VARIABLES
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.training_log import TrainingRow
from tfagents_system.transport.episode_reports import Episode, Report, summarize

REFERENCE = ROOT / "docs/reference"


@pytest.mark.parametrize("page", [*generated.PAGES, *generated.PARTS])
def test_a_page_that_is_made_from_the_code_is_current(page: str) -> None:
    """Otherwise: `python -m docs.site.generated`."""
    assert (generated.DOCS / page).read_text() == generated.made(page)


def test_the_reference_names_all_there_is() -> None:
    files = [path.name for path in vars(RunPaths).values() if isinstance(path, Below)]
    wanted = {
        "commands.md": [f"\n## sac {name}\n" for name in COMMANDS],
        "parameters.md": [f"\n| `{name}`" for name in described_by(TrainParamsBase)],
        "variables.md": [f"\n| `{variable.name}` |" for variable in VARIABLES if not variable.is_internal],
        "metrics.md": [f"\n| `{name}` |" for name in (*metrics.METRIC_COLUMNS, *metrics.FURTHER_COLUMNS)],
        "run_directory.md": [f"\n| `{name}" for name in files],
        "../coming_from.md": [
            f"`{name}`" for setting in other_libraries.SETTINGS if setting.libraries != "TMRL" for name in setting.names
        ],
    }
    missing = [
        (page, text) for page, texts in wanted.items() for text in texts if text not in (REFERENCE / page).read_text()
    ]
    assert not missing and len(wanted["variables.md"]) > 30 and "status.json" in files


def test_every_option_of_a_command_is_in_the_reference() -> None:
    text = (REFERENCE / "commands.md").read_text()
    play, submit = (text.split(f"\n## sac {name}\n")[1].split("\n## ")[0] for name in ("play", "submit"))
    assert all(option in play for option in ("--exp-dir", "--num-episodes", "--checkpoint", "--seed", "--no-video"))
    assert all(option in submit for option in ("--array", "--nodes", "--dry-run"))
    assert "options are those of [sac play](#sac-play)" in text and "record-reward:" in text and "--help" not in play


def test_a_row_has_only_columns_that_are_described() -> None:
    class Agent:
        pass

    row = TrainingRow(Agent())
    row.begin(0, 0)
    row.add_losses({"critic_loss": 1.0, "actor_loss": 1.0, "alpha_loss": 0.1, "q_mean": 2.0}, 1)
    reports = [
        Report(kind, 1, 0, 3, 100, 2, [Episode(-10.0, 50, True)], curriculum={}, device={})
        for kind in ("train", "eval")
    ]
    row.add_report(reports[0], policy_age_updates=4)
    columns = {*row.take(3, 100, 200), *summarize("eval", reports[1:])}
    assert columns <= {*metrics.METRIC_COLUMNS, *metrics.FURTHER_COLUMNS} and len(columns) >= 17
