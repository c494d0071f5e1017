"""report.html in a real browser: drawn without a complaint, chosen from and zoomed."""

import pytest

from tests.support.browser import Browser, chromium
from tests.support.run_to_report import HOSTILE, make_run, reset_run
from tfagents_system.report.page.write import main

READY = "document.body && document.body.dataset.ready === 'yes'"
CURVES = """[...document.querySelectorAll('#metrics-grid .plot')].map(
    plot => [plot.dataset.metric, plot.querySelectorAll('path.js-line').length])"""
TYPE = """(() => {{
    const box = document.getElementById('{}');
    box.value = '{}';
    box.dispatchEvent(new Event('input'));
}})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium() is None:
        pytest.skip("needs chromium-headless-shell")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_complaints(browser):
    browser.complaints.clear()
    browser.requests.clear()
    yield
    assert browser.complaints == []


def test_a_run_is_drawn_filtered_and_zoomed_without_a_network(browser, tmp_path):
    run = make_run(tmp_path / "<b>run", rows=300)
    assert main([str(run.exp_dir)]) == 0
    browser.open(run.report.as_uri(), READY)
    assert browser.value("document.querySelector('nav .name').textContent") == "<b>run"
    drawn = dict(browser.value(CURVES))
    assert drawn == dict.fromkeys(
        ["actor_loss", "alpha", "critic_loss", "env_steps_per_s", "q_mean", "updates_per_s"], 1
    )
    # Returns, evaluations with the edges of their spread, the curriculum; episodes are points.
    assert browser.value("document.querySelectorAll('#learning-plot .scatterlayer path.js-line').length") == 5
    assert browser.value("document.querySelectorAll('#learning-plot .scatterlayer .points path').length") > 600

    browser.value(TYPE.format("metrics-filter", "LOSS curric"))
    assert [name for name, _ in browser.value(CURVES)] == ["actor_loss", "critic_loss", "curriculum/mass"]
    browser.value(TYPE.format("metrics-filter", "onerror"))
    assert browser.value(CURVES) == [[f"train/{HOSTILE}", 1]]
    assert browser.value("document.querySelector('#metrics-grid .gtitle').textContent") == f"train/{HOSTILE}"
    assert browser.value("document.title") == "<b>run - report", "no text of a run is markup"
    browser.value(TYPE.format("settings-filter", "tau"))
    assert browser.value("document.querySelectorAll('#settings tbody tr').length") == 1

    browser.value(TYPE.format("metrics-filter", ""))
    browser.value("Plotly.relayout('learning-plot', {'xaxis.range': [10000, 20000]}).then(() => 0)")
    alpha = "document.querySelector('[data-metric=alpha]')"
    browser.wait(f"{alpha}.layout.xaxis.range[1] === 20000")
    browser.value("document.querySelector('[data-axis=updates]').click()")
    assert browser.value(f"{alpha}.data[0].x[100]") == 10_000
    assert [url for url in browser.requests if not url.startswith("data:")] == [run.report.as_uri()]


def test_curves_have_a_gap_where_another_agent_begins(browser, tmp_path):
    run = reset_run(tmp_path)
    with run.metrics_csv.open("a") as file:
        file.write("5,1,300,41,,100,1\n8,2,400,42,,200,1\n")
    assert main([str(run.exp_dir)]) == 0
    browser.open(run.report.as_uri(), READY)
    browser.value("document.querySelector('[data-axis=updates]').click()")
    returns = "document.getElementById('learning-plot').data.filter(each => each.y[0] === 900)"
    assert browser.value(f"{returns}.map(each => each.x)") == [[20], [20], [20, None, 5, 8]]
    assert browser.value("document.getElementById('learning-plot').data.map(each => each.y)")[2:4] == [[100, 200]] * 2
    browser.value("view.smooth = 0.5, drawMetrics()")
    loss = "document.querySelector('[data-metric=critic_loss]').data[1]"
    assert browser.value(f"{loss}.x") == [10, 20, None, 5, 8]
    means = browser.value(f"{loss}.y")
    assert means[2:4] == [None, 9] and means[4] == pytest.approx((0.25 * 9 + 0.5 * 8) / 0.75)


def test_a_curve_shows_the_only_point_of_an_agent(browser, tmp_path):
    run = reset_run(tmp_path)
    header = "train_step,iteration,env_steps,eval_success,curriculum/mass,long,reset"
    long = [f"{k},{k},{100 * k},,,{k}," for k in range(3, 80)]
    lines = ["1,1,100,0.1,1,1,", "2,2,200,0.2,,2,", *long, "5,1,9000,0.5,2,9,1"]
    run.metrics_csv.write_text("\n".join([header, *lines]) + "\n")
    assert main([str(run.exp_dir)]) == 0
    browser.open(run.report.as_uri(), READY)
    drawn = "document.getElementById('learning-plot').data.map(each => [each.name, each.mode, each.marker.opacity])"
    assert browser.value(drawn) == [
        ["eval_success", "lines+markers", [0, 0, 0, 1]],
        ["curriculum/mass", "lines+markers", [1, 0, 1]],
    ]
    shown = """[...document.querySelectorAll('#learning-plot .scatterlayer .points path')].filter(
        path => getComputedStyle(path).opacity > 0 && path.getBBox().width > 0).length"""
    assert browser.value(shown) == 3
    points = browser.value("document.querySelector('[data-metric=long]').data[0].marker")
    assert points["opacity"] == [0] * 80 + [1] and points["size"] == 3.5


def test_several_runs_are_compared_and_one_is_left_out(browser, tmp_path):
    runs = [make_run(tmp_path / f"exp_seed_{k}", rows=60, offset=40.0 * k) for k in range(3)]
    assert main([*(str(run.exp_dir) for run in runs), "--out", str(tmp_path / "all.html")]) == 0
    browser.open((tmp_path / "all.html").as_uri(), READY)
    assert dict(browser.value(CURVES))["alpha"] == 3
    browser.value("document.querySelector('#learning .chips button').click()")
    assert dict(browser.value(CURVES))["alpha"] == 2
    assert browser.value("document.querySelectorAll('#overview table').length") == 2
    assert browser.value("[...document.querySelectorAll('#differences code')].map(each => each.textContent)") == [
        "SAC_SEED"
    ]
