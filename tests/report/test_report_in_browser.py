"""report.html in a real browser: drawn without a complaint, chosen from and zoomed."""

import pytest

from tests.support.browser import Browser, chromium
from tests.support.run_to_report import HOSTILE, make_run
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
