"""What the report shows, as data: thinned curves, settings, and nothing that is secret."""

import json

import numpy as np
import pytest

from tests.support.run_to_report import HOSTILE, make_run
from tfagents_system.errors import UserError
from tfagents_system.report import compare, plots
from tfagents_system.report.page.run_data import AXES, Budget, run_data, thinned
from tfagents_system.report.page.write import main, page, page_data, plotly_js, videos_of
from tfagents_system.report.status import format_number
from tfagents_system.run_files.run_paths import RunPaths


def test_thinning_keeps_ends_and_every_peak():
    values = np.sin(np.arange(10_000) / 500)
    values[[1234, 7777]] = 9.0, -9.0
    kept = thinned(values, 500)
    assert len(kept) <= 500 and (np.diff(kept) > 0).all()
    assert {0, 1234, 7777, 9999} <= set(kept.tolist())
    # No value is farther from the curve through those that stay than a stretch of it is high.
    assert np.abs(np.interp(np.arange(10_000), kept, values[kept]) - values)[:1200].max() < 0.1
    assert thinned(values[:7], 500).tolist() == list(range(7))


def test_curves_name_rows_of_shared_axes(tmp_path):
    found = run_data(make_run(tmp_path / "run", rows=5000), Budget(points=300))
    peak = found["metrics"]["alpha"]
    place = peak["y"].index(10_000)
    row = peak["i"][place]
    assert found["axes"]["env_steps"][row] == 200 * (5000 // 3) and found["axes"]["updates"][row] == 100 * (5000 // 3)
    assert found["axes"]["hours"][row] == pytest.approx(1.5 * (5000 // 3) / 3600, rel=1e-5)
    assert len(peak["y"]) <= 300 and len(found["metrics"]["eval_return"]["y"]) == 500
    assert found["metrics"]["eval_return"]["i"] == found["metrics"]["eval_return_std"]["i"]
    assert len(found["episodes"]["return"]) <= Budget.episodes and set(found["episodes"]["worker"]) == {0, 1}


def test_the_best_evaluation_is_that_of_the_policy_that_the_run_keeps(tmp_path):
    """Not the highest of all rows: another stage, or another agent, may have had that."""
    run = make_run(tmp_path / "run")
    highest = max(run_data(run, Budget())["metrics"]["eval_return"]["y"])
    assert dict(run_data(run, Budget())["facts"])["best evaluation"] == format_number(highest)
    run.policies.mkdir()
    run.best_json.write_text(json.dumps({"checkpoint": "c", "eval_return": highest - 50.0}))
    assert dict(run_data(run, Budget())["facts"])["best evaluation"] == format_number(highest - 50.0)


def test_an_evaluation_is_drawn_at_the_steps_of_its_policy(tmp_path):
    """Its row comes after rows of more steps."""
    run = RunPaths(tmp_path)
    header = "train_step,iteration,env_steps,wall_time_s,critic_loss,eval_return"
    run.metrics_csv.write_text(f"{header}\n10,1,100,36,0.5,\n20,2,200,72,0.4,\n30,3,300,108,0.3,\n10,1,100,144,,7\n")
    found = run_data(run, Budget())
    (row,) = found["metrics"]["eval_return"]["i"]
    assert [found["axes"][axis][row] for axis in AXES] == [100, 10, 0.04]
    facts = dict(found["facts"])
    assert (facts["environment steps"], facts["updates"], facts["last evaluation"]) == ("300", "30", "7")


def test_settings_tell_defaults_and_no_secrets(tmp_path):
    run = make_run(tmp_path / "run")
    settings = {each["name"]: each for each in run_data(run, Budget())["settings"]}
    tau = {"name": "target_update_tau", "value": "0.01", "default": "0.005", "differs": True, "set": True}
    assert settings["target_update_tau"] == tau
    assert not settings["discount"]["differs"] and not settings["SAC_MAX_RESTARTS"]["differs"]
    assert settings["SAC_TRAIN_CPUS"]["differs"] and settings["config.env.text"]["value"] == HOSTILE
    assert "secret" not in page(page_data([run.exp_dir]))


def test_a_run_that_has_only_begun_has_a_report(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_text("{}")
    assert main([str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "report.html").stat().st_size > 1_000_000


def test_no_text_of_a_user_is_markup(tmp_path):
    run = make_run(tmp_path / "<b>run")
    text = page(page_data([run.exp_dir]))
    assert HOSTILE not in text and "<b>run" not in text and text.count("</script>") == 3
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert data["runs"][0]["name"] == "<b>run" and f"train/{HOSTILE}" in data["runs"][0]["metrics"]
    assert "default-src 'none'" in text and "http-equiv" in text


def test_ten_thousand_rows_and_videos_stay_below_ten_megabytes(tmp_path):
    run = make_run(tmp_path / "run", rows=10_000, more_metrics=40, video_bytes=4_000_000)
    assert main([str(run.exp_dir)]) == 0
    assert 5_000_000 < run.report.stat().st_size < 10_000_000


def test_videos_take_turns_for_the_room_that_there_is(tmp_path):
    runs = [make_run(tmp_path / name, video_bytes=100) for name in "ab"]
    told = videos_of([*runs, RunPaths(tmp_path)], most_bytes=120)
    assert [[(v["name"], v["data"] is not None) for v in of_run] for of_run in told] == [
        [("montage", True), ("latest_seed_0_episode_1", True)],
        [("montage", True), ("latest_seed_0_episode_1", False)],
        [],
    ]


def test_several_runs_have_the_numbers_of_compare(tmp_path):
    runs = [make_run(tmp_path / f"exp_seed_{k}", offset=40.0 * k) for k in range(4)]
    found = page_data([run.exp_dir for run in runs])["comparison"]
    (group,) = found["groups"]
    assert group["runs"] == [0, 1, 2, 3] and group["curve"]["counts"][0] == 4
    finals = [run_data(run, Budget())["metrics"]["eval_return"]["y"][-1] for run in runs]
    assert found["table"][0]["final_iqm"] == pytest.approx(np.mean(sorted(finals)[1:3]), rel=1e-6)


def test_what_is_beside_runs_is_passed_over(tmp_path, capsys):
    runs = [make_run(tmp_path / f"exp_seed_{k}").exp_dir for k in range(2)]
    for name, mark in (("exp_array", "snapshot"), ("exp_tasks", "tasks.json"), ("exp_inputs", ".output.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / mark).touch()
    (tmp_path / "notes.txt").touch()
    assert compare.main([*map(str, runs), "--output", str(tmp_path / "compare.png")]) == 0
    others = [path for path in tmp_path.iterdir() if path not in runs and path.name != "notes.txt"]
    assert len(others) == 5
    given = [str(path) for path in (*others, *runs)]
    assert compare.main([*given, "--output", str(tmp_path / "compare.png")]) == 0
    assert main([*given, "--out", str(tmp_path / "all.html")]) == 0 and plots.main(given) == 0
    assert "error" not in capsys.readouterr().err
    with pytest.raises(UserError, match="notes.txt is no directory"):
        compare.main([*given, str(tmp_path / "notes.txt")])
    with pytest.raises(UserError, match="exp_array has no metrics.csv"):
        main([str(tmp_path / "exp_array")])


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    with pytest.raises(UserError) as told:
        main([str(tmp_path / "none"), "--out", str(tmp_path / "no" / "report.pdf")])
    assert len(told.value.findings) == 3
    with pytest.raises(UserError, match="give directories of runs"):
        main([str(tmp_path)])


def test_without_plotly_the_remedy_is_told(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install plotly"):
        plotly_js()
