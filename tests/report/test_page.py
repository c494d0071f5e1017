"""report.html: thinned curves, settings, nothing that is secret; and what a browser makes of it."""

import json

import numpy as np
import pytest

from tests.support.browser import Browser, chromium
from tests.support.run_to_report import HOSTILE, make_run
from tfagents_system.errors import UserError
from tfagents_system.report.page import (
    _videos,
    facts_of,
    learning_figure,
    main,
    page,
    settings_of,
    thinned,
    thinned_series,
)
from tfagents_system.report.status import RunModel, format_number
from tfagents_system.run_files.run_paths import RunPaths


def model_of(paths):
    return RunModel(paths.exp_dir)


def test_thinning_keeps_ends_and_every_peak(tmp_path):
    values = np.sin(np.arange(10_000) / 500)
    values[[1234, 7777]] = 9.0, -9.0
    kept = thinned(values, 500)
    assert len(kept) <= 500 and (np.diff(kept) > 0).all()
    assert {0, 1234, 7777, 9999} <= set(kept)
    # No value is farther from the curve through those that stay than a stretch of it is high.
    assert np.abs(np.interp(np.arange(10_000), kept, values[kept]) - values)[:1200].max() < 0.1
    assert list(thinned(values[:7], 500)) == list(range(7))
    steps, y = thinned_series(model_of(make_run(tmp_path / "run", rows=5000)), "alpha", 300)
    assert len(y) <= 300 and steps[y.index(10_000)] == 200 * (5000 // 3)


def test_the_best_evaluation_is_that_of_the_policy_that_the_run_keeps(tmp_path):
    """Not the highest of all rows: another stage may have had that."""
    run = make_run(tmp_path / "run")
    highest = max(model_of(run).series("eval_return")[1])
    assert facts_of(model_of(run))["best evaluation"] == format_number(highest)
    run.policies.mkdir()
    run.best_json.write_text(json.dumps({"checkpoint": "policy_checkpoint_0000001900", "eval_return": highest - 50.0}))
    assert facts_of(model_of(run))["best evaluation"] == format_number(highest - 50.0)
    (star,) = [t for t in learning_figure(model_of(run)).data if t.name == "best policy"]
    assert star.x == (3800,)


def test_an_evaluation_is_drawn_at_the_steps_of_its_policy(tmp_path):
    """Its row comes after rows of more steps."""
    run = RunPaths(tmp_path)
    header = "train_step,iteration,env_steps,wall_time_s,critic_loss,eval_return"
    run.metrics_csv.write_text(f"{header}\n10,1,100,36,0.5,\n20,2,200,72,0.4,\n30,3,300,108,0.3,\n10,1,100,144,,7\n")
    assert model_of(run).series("eval_return", "critic_loss") == [[100], [7], [0]]
    facts = facts_of(model_of(run))
    assert (facts["environment steps"], facts["updates"], facts["last evaluation"]) == ("300", "30", "7")


def test_settings_tell_defaults_and_no_secrets(tmp_path):
    run = make_run(tmp_path / "run")
    settings = {name: rest for name, *rest in settings_of(model_of(run))}
    assert settings["target_update_tau"] == ["0.01", "0.005"] and settings["discount"] == ["0.99", "0.99"]
    assert settings["SAC_MAX_RESTARTS"] == ["10", "10"] and settings["SAC_TRAIN_CPUS"] == ["2", "auto"]
    assert settings["config.env.text"] == [HOSTILE, ""]
    assert "secret" not in page(model_of(run))


def test_no_text_of_a_user_is_markup(tmp_path):
    text = page(model_of(make_run(tmp_path / "<b>run")))
    assert HOSTILE not in text and "<b>run" not in text and "<b>x" not in text and text.count("</script>") == 3
    assert "default-src 'none'" in text and "http-equiv" in text


def test_many_rows_and_videos_stay_below_ten_megabytes(tmp_path):
    run = make_run(tmp_path / "run", rows=1300, more_metrics=30, video_bytes=4_000_000)
    assert main([str(run.exp_dir)]) == 0
    assert 5_000_000 < run.report.stat().st_size < 10_000_000
    model = model_of(make_run(tmp_path / "short", video_bytes=100))
    text = _videos(model, most_bytes=20)
    assert text.count("<video") == 1 and text.index("montage") < text.index("latest_seed_0_episode_1 is too large")
    assert _videos(model).count("<video") == 2 and _videos(RunModel(tmp_path)) == ""


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    with pytest.raises(UserError) as told:
        main([str(tmp_path / "none"), "--out", str(tmp_path / "no" / "report.pdf")])
    assert len(told.value.findings) == 3
    with pytest.raises(UserError, match="give the directory of a run"):
        main([str(tmp_path)])
    (tmp_path / "run.json").write_text("{}")
    assert main([str(tmp_path)]) == 0, "a run that has only begun"


# In a browser.

READY = "document.body && document.body.dataset.ready === 'yes'"
SHOWN = """[...document.querySelectorAll('#metrics .plot')].filter(plot => plot.offsetParent && plot.data).map(
    plot => [plot.dataset.text, plot.querySelectorAll('path.js-line').length])"""
TYPE = """(() => {{
    const box = document.querySelector('#{} input[type=search]');
    box.value = '{}';
    box.dispatchEvent(new Event('input'));
}})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium() is None:
        pytest.skip("needs chromium-headless-shell")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_a_run_is_drawn_and_filtered_without_a_network(browser, tmp_path):
    run = make_run(tmp_path / "<b>run", rows=300)
    assert main([str(run.exp_dir)]) == 0
    browser.open(run.report.as_uri(), READY)
    assert browser.value("document.querySelector('nav .name').textContent") == "<b>run"
    # Training, evaluations with the edges of their spread; episodes are points.
    browser.wait("document.querySelectorAll('#learning .scatterlayer path.js-line').length === 4")
    assert browser.value("document.querySelectorAll('#learning .scatterlayer .points path').length") > 600
    browser.wait(f"({SHOWN}).length === 7")
    names = ["actor_loss", "alpha", "critic_loss", "curriculum/mass", "env_steps_per_s", "q_mean", "updates_per_s"]
    assert dict(browser.value(SHOWN)) == dict.fromkeys(names, 1)

    browser.value(TYPE.format("metrics", "LOSS curric"))
    browser.wait(f"({SHOWN}).length === 3")
    assert {name for name, _ in browser.value(SHOWN)} == {"actor_loss", "critic_loss", "curriculum/mass"}
    browser.value(TYPE.format("metrics", "onerror"))
    browser.wait(f"({SHOWN}).length === 1")
    assert browser.value("document.querySelector('#metrics .plot:not([hidden]) .gtitle').textContent").startswith(
        "train/<b>"
    )
    assert browser.value("document.title") == "<b>run - report", "no text of a run is markup"
    browser.value(TYPE.format("settings", "tau"))
    assert browser.value("document.querySelectorAll('#settings tr[data-text]:not([hidden])').length") == 1

    assert [url for url in browser.requests if not url.startswith("data:")] == [run.report.as_uri()]
    assert browser.complaints == []
