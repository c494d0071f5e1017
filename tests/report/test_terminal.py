"""What is shown of a run while it runs."""

import io

import pytest
from rich.console import Console

from tests.support.statuses import NOW, beat, status
from tfagents_system.report import terminal
from tfagents_system.report.terminal import ProgressView, SurvivingConsole, progress_line, render


def rendered(content, width=80, height=50):
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(render(content, width, height))
    return console.file.getvalue()


def shown(*statuses, is_terminal=True, file=None):
    """What a terminal gets of these and of a last line."""
    console = SurvivingConsole(file=file or io.StringIO(), force_terminal=is_terminal, width=80, height=40)
    view = ProgressView(console, line_secs=1e-9)
    view.start()
    for content in statuses:
        view.update(content)
    view.stop(["policy: there"])
    return console.file.getvalue()


def words(text):
    return " ".join(text.replace("│", " ").replace("\u00a0", " ").split())


def test_the_line_says_it_all():
    assert progress_line(status()) == (
        "[00:42] iteration 12/25  env steps 4,800  updates/s 181  steps/s 172  train return -423.1  "
        "eval return -310.2 ± 40.1  best -298.7  alpha 0.213  mass 1.5  left 01:10"
    )


def test_before_there_are_numbers_the_line_says_what_the_roles_do():
    content = status(workers=12)
    content["roles"]["trainer"] = {"alive": True, "restarts": 0}
    content["roles"]["worker_3"] = beat("waiting")
    assert progress_line(content) == (
        "[00:42] replay serving, trainer starting, worker_0..11 11 collecting, 1 waiting  env steps 4,800"
    )
    content["roles"] = {role: {"alive": True, "restarts": 0} for role in content["roles"]}
    del content["plan"]
    assert "trainer starting" in words(rendered(content))


def test_names_are_dim_and_their_values_are_not():
    console = Console(width=80, force_terminal=True, color_system="truecolor")
    segments = [segment for line in console.render_lines(render(status())) for segment in line]
    is_dim = {segment.text.strip(): bool(segment.style and segment.style.dim) for segment in segments}
    assert is_dim["updates/s"] and not is_dim["181"]
    assert is_dim["curriculum"] and not is_dim["mass\u00a01.5"]


def test_the_live_view_shows_every_number_and_role():
    content = status(name="[red]pendulum[/]")
    content["roles"]["worker_0"] |= {"restarts": 1, "alive": False}
    text = words(rendered(content))
    progress = ["[red]pendulum[/] running 00:42", "iteration 12/25", "48%", "01:10 left"]
    numbers = ["env steps 4,800", "updates/s 181", "steps/s 172", "train return -423.1", "eval return -310.2 ± 40.1"]
    numbers += ["best -298.7", "critic loss 0.0543", "actor loss 35.2", "alpha 0.213", "curriculum mass 1.5"]
    time = ["trainer's time updates 93% waiting 4% saving 2% logging 1%"]
    roles = ["replay CPU 0 serving 1 s ago", "trainer CPU 1-3 updating 1 s ago", "worker_1 CPU 5 collecting 1 s ago"]
    down = ["worker_0 CPU 4 down 1 s ago 1 restart", "worker_0: down"]
    assert [part for part in (*progress, *numbers, *time, *roles, *down) if part not in text] == []


def test_where_each_roles_time_goes_is_shown_the_workers_on_average():
    content = status()
    content["roles"]["replay"]["time_shares"] = {"idle": 0.9, "drawing": 0.08, "storing": 0.001}
    content["roles"]["worker_0"]["time_shares"] = {"simulator": 0.6, "waiting for the policy": 0.3}
    content["roles"]["worker_1"]["time_shares"] = {"simulator": 0.8}
    text = words(rendered(content))
    assert "replay's time idle 90% drawing 8% workers' time simulator 70% waiting for the policy 15%" in text
    content["roles"]["worker_1"] |= {"kind": "eval", "time_shares": {"evaluating": 0.9}}
    text = words(rendered(content, 200))
    assert "simulator 60% waiting for the policy 30%" in text and "evaluators' time evaluating 90%" in text


def test_many_workers_are_one_line_with_the_oldest_heartbeat():
    content = status(workers=64)
    for i in range(4):
        content["roles"][f"worker_{i}"] = beat("waiting", age=7)
    text = words(rendered(content))
    assert "worker_0..63 CPU 4-67 60 collecting, 4 waiting 7 s ago" in text
    assert "worker_5 " not in text


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("workers", [1, 6, 256])
def test_it_fits_the_terminal(width, workers):
    content = status(workers=workers)
    content["roles"]["worker_0"]["waiting_for"] = "something with a very long name " * 3
    content["roles"]["worker_0"] |= {"state": "waiting", "since": NOW - 100}
    lines = rendered(content, width, height=24).splitlines()
    assert max(map(len, lines)) == min(width, 100)
    if width >= 80:
        assert len(lines) <= 24
        assert "…" not in "".join(lines)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    monkeypatch.setattr(terminal.time, "monotonic", lambda: Clock.now)
    return Clock


def test_plain_lines_come_every_few_seconds_and_only_with_news(clock, capsys):
    view = ProgressView(Console(force_terminal=False), line_secs=5)
    view.start()
    for second in range(70):
        clock.now = float(second)
        content = status(elapsed=second)
        content["roles"]["trainer"]["iteration"] = min(second, 7)
        view.update(content)
    view.stop(["plot: here"])
    lines = capsys.readouterr().out.splitlines()
    told = [line.split("  ")[0] for line in lines]
    assert told == [*(f"[00:{secs:02}] iteration {k}/25" for secs, k in ((0, 0), (5, 5), (10, 7))), "plot: here"]


def test_a_line_has_numbers_of_a_row_and_faults_once(clock, capsys):
    told = []

    def tell(iteration, faults=0, **trainer):
        content = status()
        content["roles"]["trainer"] |= {"iteration": iteration, **trainer}
        content["roles"]["worker_0"] |= {"env_faults": faults, "last_env_fault_at": NOW + faults if faults else None}
        clock.now += 5.0
        view.update(content)
        told.append(capsys.readouterr().out.partition("] ")[2].rstrip())

    view = ProgressView(Console(force_terminal=False), line_secs=5)
    view.start()
    tell(12, faults=1)
    tell(13, faults=1)
    tell(14, faults=1, logged_at=NOW, train_return=-400.0)
    tell(15, faults=2, logged_at=NOW, train_return=-400.0, evaluated_at=NOW + 5.0)  # With the same return.
    tell(15, faults=2, logged_at=NOW, train_return=-400.0, evaluated_at=NOW + 5.0)
    row, evaluation = "updates/s 181  steps/s 172  train return {}  ", "eval return -310.2 ± 40.1  "
    after, end = "best -298.7  {}mass 1.5  left 01:10", "  ! {} environment fault"
    assert told == [
        "iteration 12/25  env steps 4,800  "
        + row.format("-423.1")
        + evaluation
        + after.format("alpha 0.213  ")
        + end.format(1),
        "iteration 13/25  env steps 4,800  " + after.format(""),
        "iteration 14/25  env steps 4,800  " + row.format("-400.0") + after.format("alpha 0.213  "),
        "iteration 15/25  env steps 4,800  " + evaluation + after.format("") + end.format(2) + "s",
        "",
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_output_that_is_gone_ends_no_run(is_terminal):
    class Gone(io.StringIO):
        def write(self, text):
            if "00:42" in self.getvalue():
                raise BrokenPipeError(32, "Broken pipe")
            return super().write(text)

    assert "policy" not in shown(status(), status(elapsed=50), is_terminal=is_terminal, file=Gone())
    text = shown(status(), is_terminal=is_terminal)
    assert "4,800" in text and text.endswith("policy: there\n")
    assert ("\x1b[?25h" in text) == is_terminal, "the cursor is back"


def test_a_view_that_fails_is_told_once_and_ends_nothing(capsys):
    for is_terminal in (True, False):
        text = shown(*[{"run": {}, "roles": {"trainer": 7}}] * 3, is_terminal=is_terminal)  # No supervisor writes that.
        told = text + capsys.readouterr().err
        assert "policy: there" in told and told.count("the view fails: KeyError") == 1
