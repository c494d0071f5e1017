"""report.html: thinned curves, settings, nothing that is secret; and what a browser makes of it."""

import json

import numpy as np
import pytest

from tests.support.browser import LOW_CONTRASTS, Browser, chromium
from tests.support.run_to_report import HOSTILE, make_run
from tfagents_system.errors import UserError
from tfagents_system.report.page import (
    _videos,
    duration,
    facts_of,
    is_usual,
    learning_figure,
    main,
    metric_figure,
    origin_of,
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
    assert facts_of(model_of(run))["best evaluation"] == (format_number(highest), "")
    run.policies.mkdir()
    run.best_json.write_text(json.dumps({"checkpoint": "policy_checkpoint_0000001900", "eval_return": highest - 50.0}))
    best = f"{format_number(highest - 50.0)} ± 25.5"
    assert facts_of(model_of(run))["best evaluation"] == (best, "since step 3,800")
    (star,) = [curve for curve in learning_figure(model_of(run))["curves"] if curve["look"] == "best"]
    assert star["x"] == [3800]


def test_an_evaluation_is_drawn_at_the_steps_of_its_policy(tmp_path):
    """Its row comes after rows of more steps."""
    run = RunPaths(tmp_path)
    header = "train_step,iteration,env_steps,wall_time_s,critic_loss,eval_return,eval_episodes"
    run.metrics_csv.write_text(
        f"{header}\n10,1,100,36,0.5,,\n20,2,200,72,0.4,,\n30,3,300,108,0.3,,\n10,1,100,144,,7,5\n"
    )
    assert model_of(run).series("eval_return", "critic_loss") == [[100], [7], [0]]
    facts = facts_of(model_of(run))
    assert (facts["environment steps"][0], facts["updates"][0]) == ("300", "30")
    assert facts["last evaluation"] == ("7", "at step 100, mean of 5 episodes")
    assert facts["trained for"] == ("2 min 24 s", "over all starts")


def test_durations_are_in_units_that_one_reads(tmp_path):
    assert list(map(duration, (0.2, 18, 80, 3600, 7500.0, 400_000))) == (
        ["0 s", "18 s", "1 min 20 s", "1 h", "2 h 5 min", "111 h 6 min"]
    )
    run = make_run(tmp_path / "run")
    status = json.loads(run.status_json.read_text())
    status["roles"]["trainer"]["ended_early"] = "max_hours=0.005 is reached"
    run.status_json.write_text(json.dumps(status))
    assert facts_of(model_of(run))["state"][1] == "max_hours = 18 s is reached"


def test_the_top_says_what_was_trained_where_and_with_what(tmp_path):
    origin = origin_of(model_of(make_run(tmp_path / "run")))
    assert [*origin.values()] == [
        ("sac", ""),
        ("Reacher-v5", ""),
        ("3", ""),
        ("node7", "8 CPUs, AMD EPYC 7B13"),
        ("0.1.0", "commit 07ba191db632"),
    ]
    assert origin_of(RunModel(tmp_path)) == {}


def test_settings_tell_what_gave_them_and_no_secrets(tmp_path):
    run = make_run(tmp_path / "run")
    settings = {name: rest for name, *rest in settings_of(model_of(run))}
    assert settings["target_update_tau"] == ["0.01", "--set", "0.005"]
    assert settings["discount"] == ["0.99 per environment step", "default", "0.99 per environment step"]
    assert settings["num_iter"] == ["200 iterations", "params", "1,000 iterations"]
    assert settings["SAC_MAX_RESTARTS"] == ["10", "default", "10"]
    assert settings["SAC_TRAIN_CPUS"] == ["2", "variable or default", "auto"]
    assert settings["config.horizon"][1] == "JSON" and settings["config.env.text"] == [HOSTILE, "--set", ""]
    assert "secret" not in page(model_of(run))


def test_defaults_are_those_of_the_algorithm_and_what_it_does_not_use_is_left_out(tmp_path):
    run = make_run(tmp_path / "run")
    content = json.loads(run.run_json.read_text())
    schedule = {"points": [[0.0, 3e-4], [1e5, 3e-5]], "interpolation": "linear", "by": "env_steps"}
    adam = {"name": "adam", "weight_decay": 0.0, "global_clipnorm": None, "beta_1": 0.9, "beta_2": 0.999}
    content["attributes"] = {
        **{"algorithm": "xqc", "learning_rate": schedule, "actor_learning_rate": schedule, "actor_update_period": 3},
        **{"critic_optimizer": {**adam, "epsilon": 1e-5}, "max_hours": 0.5, "mine": 4},
        **{"num_env_steps": 100_000, "num_iter": 100_000},
        **{"exploration_epsilon": 0.1, "double_q": False, "boltzmann_epsilon": 0.2},
    }
    began = {"learning_rate": {"points": [[0, 3e-4], [1e5, 3e-5]], "by": "env_steps"}}
    content["overrides"] = {"defaults": began}
    run.run_json.write_text(json.dumps(content))
    settings = {name: rest for name, *rest in settings_of(model_of(run)) if not name.startswith(("SAC_", "config."))}
    sources = {name: source for name, (_, source, _) in settings.items()}
    assert {name for name, source in sources.items() if source != "default"} == (
        {"algorithm", "critic_optimizer.epsilon", "max_hours", "mine", "num_env_steps", "boltzmann_epsilon"}
    )
    assert settings["critic_optimizer.epsilon"] == ["1e-05", "params", "1e-07"]
    assert settings["max_hours"] == ["30 min", "params", "None"] and settings["mine"] == ["4", "params", ""]
    assert settings["boltzmann_epsilon"] == ["0.2", "params, without effect", "0.0"]
    assert not {"exploration_epsilon", "double_q"} & settings.keys()
    assert settings["actor_learning_rate.points"][0] == "[[0.0, 0.0003], [100000.0, 3e-05]]"


def test_metrics_of_ones_own_are_shown_at_once():
    assert all(map(is_usual, ("train/force", "eval/lap_time", "critic_loss", "schedule/discount")))
    hidden = ("train/policy_lag", "eval/episode_length", "train/step_ms_p99", "eval/step_ms_p99", "grad_norm")
    assert not any(map(is_usual, hidden))


def test_figures_have_units_and_are_told_in_words(tmp_path):
    model = model_of(make_run(tmp_path / "run", more_metrics=1))
    names = ("critic_loss", "updates_per_s", "alpha", "train/force_0", "curriculum/mass")
    units = ["loss", "per second", "alpha", "force_0", "mass"]
    assert [metric_figure(model, name)["unit"] for name in names] == units
    text = page(model)
    words = "critic_loss: first 300 at step 0, last 1.5 at step 39,800, from 1.5 to 300."
    assert f'role="img" aria-label="Over environment steps. {words}"' in text
    assert "evaluations, mean ± deviation: first " in text
    assert text.count('class="plot"') == text.count('role="img"') == 13


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
    assert 'aria-label="video of the environment: montage"' in text
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
    plot => [plot.parentElement.dataset.text, plot.querySelectorAll('path.js-line').length])"""
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
    assert browser.value("document.querySelector('h1').textContent") == "<b>run"
    # Training, evaluations with the edges of their spread; episodes are points.
    browser.wait("document.querySelectorAll('#learning .scatterlayer path.js-line').length === 4")
    assert browser.value("document.querySelectorAll('#learning .scatterlayer .points path').length") > 600
    browser.wait(f"({SHOWN}).length === 8")
    names = ["actor_loss", "alpha", "critic_loss", "curriculum/mass", "env_steps_per_s", "q_mean", "updates_per_s"]
    names.append(f"train/{HOSTILE}".lower())
    assert dict(browser.value(SHOWN)) == dict.fromkeys(names, 1)

    titles = "[...document.querySelectorAll('#metrics .plot')][0].querySelectorAll('.xtitle, .ytitle')"
    assert browser.value(f"[...{titles}].map(title => title.textContent)") == ["environment steps", "loss"]

    browser.value(TYPE.format("metrics", "LOSS curric"))
    browser.wait(f"({SHOWN}).length === 3")
    assert {name for name, _ in browser.value(SHOWN)} == {"actor_loss", "critic_loss", "curriculum/mass"}
    browser.value(TYPE.format("metrics", "onerror"))
    browser.wait(f"({SHOWN}).length === 1")
    assert browser.value("document.querySelector('#metrics figure:not([hidden]) figcaption').textContent").startswith(
        "train/<b>"
    )
    assert browser.value("document.title") == "<b>run - report", "no text of a run is markup"
    browser.value(TYPE.format("settings", "tau"))
    assert browser.value("document.querySelectorAll('#settings tr[data-text]:not([hidden])').length") == 1

    for width, scheme, color in [(390, "dark", "rgb(86, 180, 233)"), (390, "light", "rgb(0, 114, 178)")]:
        browser.look(width, scheme)
        line = "document.querySelector('#metrics figure:not([hidden]) path.js-line')"
        browser.wait(f"getComputedStyle({line}).stroke === '{color}'")
        assert browser.value(LOW_CONTRASTS) == {}
        browser.wait(f"document.documentElement.scrollWidth <= {width}")  # Figures follow a moment later.

    assert [url for url in browser.requests if not url.startswith("data:")] == [run.report.as_uri()]
    assert browser.complaints == []
