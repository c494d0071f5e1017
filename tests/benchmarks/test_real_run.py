"""What a measured run is given, and what of the caller's environment is kept from it."""

import sys
from pathlib import Path

from benchmarks.processes import ROOT
from benchmarks.real_run import RealRun, clean_environ


def test_the_vars_file_has_the_own_settings_and_what_the_benchmark_sets_wins():
    run = RealRun(ROOT / "params.py", {"horizon": 10}, {"SAC_SEED": 3, "SAC_TRAIN_CPUS": 2})
    lines = run.vars_file.read_text().splitlines()
    assert {"SAC_SEED=3", "SAC_TRAIN_CPUS=2", f"SAC_EXP_DIR={run.paths.exp_dir}", "SAC_SHARE_CPUS=1"} <= set(lines)
    assert "SAC_TRAIN_CPUS=1" not in lines
    config = next(line for line in lines if line.startswith("SAC_CONFIG=")).partition("=")[2]
    assert Path(config).read_text() == '{"horizon": 10}'


def test_nothing_of_the_users_changes_the_run():
    kept = clean_environ({"SAC_SEED": "1", "SLURM_JOB_ID": "2", "TF_X": "3", "OMP_X": "4", "HOME": "/"})
    assert kept == {"HOME": "/", "PYTHONPATH": str(ROOT), "VIRTUAL_ENV": sys.prefix}
