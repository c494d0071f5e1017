"""Every variable is read once, checked once, and all mistakes are told together."""

from pathlib import Path

import pytest

from tests.support.machines import flat
from tfagents_system.errors import UserError
from tfagents_system.launch.cpus import plan_for
from tfagents_system.settings.variables import (
    VARIABLES,
    RunVariables,
    _check_workers,
    automatic_counts,
    read_variables,
    unknown_names,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "my_params.py").write_text("")
    (tmp_path / "my.json").write_text("{}")
    return {
        "SAC_REVERB_CPUS": "1",
        "SAC_TRAIN_CPUS": "2",
        "SAC_NUM_COLLECT_WORKERS": "3",
        "SAC_COLLECT_WORKER_CPUS": "4",
        "SAC_PARAMS": "my_params.py",
        "SAC_CONFIG": str(tmp_path / "my.json"),
        "SAC_EXP_NAME": "swing",
    }


def read(environ: dict[str, str], folder: Path) -> RunVariables:
    values, findings = read_variables(environ, vars_file=folder / "vars.sh", root=ROOT)
    if findings:
        raise UserError(*findings)
    return RunVariables(**values)


def test_reads_the_required_ones_and_fills_in_defaults(environ: dict[str, str], tmp_path: Path) -> None:
    variables = read(environ, tmp_path)
    assert (variables.reverb_cpus, variables.train_cpus) == (1, 2)
    assert (variables.num_collect_workers, variables.collect_worker_cpus) == (3, 4)
    assert variables.params == tmp_path / "my_params.py"  # found beside the vars file
    assert variables.exp_dir == ROOT / "logs/swing"
    assert variables.reverb_port is None
    assert (variables.seed, variables.share_cpus, variables.max_restarts) == (0, False, 10)
    assert (variables.save_deadline_secs, variables.straggler_secs) == (60.0, 120.0)


def test_a_trainer_elsewhere_starts_nothing_but_itself(environ: dict[str, str], tmp_path: Path) -> None:
    environ |= {
        "SAC_TRAINER_SERVER": "node7:8443",
        "SAC_CREDENTIALS_DIR": str(tmp_path),
        "SAC_REVERB_PORT": "8008",
        "SAC_EXPERT_WORKERS": "2",
    }
    variables = read(environ, tmp_path)
    assert (variables.local_workers, variables.expert_workers, variables.reverb_port) == (0, 0, None)
    plan = plan_for(vars(variables), usable=flat([0, 1, 2, 3]))
    assert set(plan.by_role) == {"trainer"} and len(plan.trainer) == 2


def test_a_server_without_its_trainer_plans_no_cpus_for_it(environ: dict[str, str], tmp_path: Path) -> None:
    environ |= {"SAC_LOCAL_TRAINER": "0", "SAC_LOCAL_WORKERS": "0", "SAC_GATEWAY_PORT": "0"}
    plan = plan_for(vars(read(environ, tmp_path)), usable=flat([0, 1]))
    assert set(plan.by_role) == {"replay"}


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"SAC_LOCAL_TRAINER": "0"}, "SAC_LOCAL_TRAINER=0 needs SAC_GATEWAY_PORT, at which the trainer joins"),
        ({"SAC_TRAINER_SERVER": "node7:8443"}, "SAC_TRAINER_SERVER=node7:8443 needs SAC_CREDENTIALS_DIR"),
        (
            {"SAC_LOCAL_TRAINER": "0", "SAC_GATEWAY_PORT": "0", "SAC_DETERMINISTIC": "1"},
            "SAC_LOCAL_TRAINER=0 does not work with SAC_DETERMINISTIC=1",
        ),
        (
            {"SAC_TRAINER_SERVER": "node7:8443", "SAC_CREDENTIALS_DIR": "/keys", "SAC_DETERMINISTIC": "1"},
            "SAC_TRAINER_SERVER=node7:8443 does not work with SAC_DETERMINISTIC=1",
        ),
    ],
)
def test_a_trainer_elsewhere_needs_a_way_to_its_run(
    changes: dict[str, str], finding: str, environ: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as raised:
        read(environ | changes, tmp_path)
    (found,) = raised.value.findings
    assert found.startswith(finding)


@pytest.mark.parametrize(
    ("variable", "name"), [("SAC_PARAMS", "p.py"), ("SAC_CONFIG", "sub/p.py"), ("SAC_EXPERT_POLICY", "p.py")]
)
def test_what_is_trained_is_what_the_vars_files_folder_has(
    variable: str, name: str, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, current, project = (tmp_path / folder for folder in ("root", "current", "project"))
    for folder in (root, current, project):
        (folder / "sub").mkdir(parents=True)
    monkeypatch.chdir(current)
    environ |= {"SAC_PARAMS": str(tmp_path / "my_params.py"), variable: name}
    field = variable.removeprefix("SAC_").lower()
    for place in (None, root, current, project):
        if place is not None:
            (place / name).write_text("")
        values, findings = read_variables(environ, vars_file=project / "vars.sh", root=root)
        assert (values.get(field), len(findings)) == ((None, 1) if place is None else (place / name, 0))


def test_how_a_worker_deals_with_its_environments(environ: dict[str, str], tmp_path: Path) -> None:
    variables = read(environ, tmp_path)
    assert (variables.step_timeout_secs, variables.worker_memory_mb, variables.env_python) == (300.0, None, None)
    (tmp_path / "python").symlink_to("/bin/sh")
    environ |= {"SAC_STEP_TIMEOUT_SECS": "2.5", "SAC_WORKER_MEMORY_MB": "900", "SAC_ENV_PYTHON": "python"}
    variables = read(environ, tmp_path)
    assert variables.env_python == tmp_path / "python", "beside the vars file, and its link not followed"
    assert (variables.step_timeout_secs, variables.worker_memory_mb) == (2.5, 900)


def test_a_job_array_task_gets_its_own_directory_once(environ: dict[str, str], tmp_path: Path) -> None:
    environ["SLURM_ARRAY_TASK_ID"] = "7"
    variables = read(environ, tmp_path)
    assert variables.exp_dir == ROOT / "logs/swing_task_7"
    # What roles see is read the same way and stays the same.
    again = read({**environ, **variables.to_environ()}, tmp_path)
    assert again == variables


@pytest.mark.parametrize("name", ["SAC_EXP_NAME", "SAC_EXP_DIR"])
def test_a_job_array_is_not_called_as_a_task_of_another_one(environ: dict[str, str], tmp_path: Path, name: str) -> None:
    environ |= {name: "walk_task_3"}
    assert read(environ, tmp_path).exp_dir.name == "walk_task_3"  # One of them alone.
    with pytest.raises(UserError, match=rf"{name}=walk_task_3 must not end in _task_3 in a sweep or a job array"):
        read(environ | {"SLURM_ARRAY_TASK_ID": "13"}, tmp_path)


def test_runs_are_in_logs_of_the_current_folder_or_where_the_variable_says(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ |= {"SAC_PARAMS": str(tmp_path / "my_params.py"), "SAC_REPLAY_DIR": "rings"}
    here = read(environ, Path("/elsewhere"))
    assert (here.exp_dir, here.replay_dir and here.replay_dir.parent) == (tmp_path / "logs/swing", tmp_path / "rings")
    environ["SAC_LOGS_DIR"] = "project/../runs"
    variables = read(environ | {"SLURM_ARRAY_TASK_ID": "7"}, Path("/elsewhere"))
    assert (variables.logs_dir, variables.exp_dir) == (tmp_path / "runs", tmp_path / "runs/swing_task_7")
    assert read(variables.to_environ(), Path("/elsewhere")) == variables  # As roles have them.
    assert read(environ | {"SAC_LOGS_DIR": "/runs"}, tmp_path).exp_dir == Path("/runs/swing")


def test_runs_that_share_a_scratch_folder_do_not_share_a_ring(environ: dict[str, str], tmp_path: Path) -> None:
    environ["SAC_REPLAY_DIR"] = str(tmp_path / "scratch")
    first = read(environ, tmp_path)
    second = read({**environ, "SAC_EXP_NAME": "other"}, tmp_path)
    assert first.replay_dir is not None and first.replay_dir.parent == tmp_path / "scratch"
    assert first.replay_dir != second.replay_dir
    assert read({**environ, **first.to_environ()}, tmp_path).replay_dir == first.replay_dir


def test_a_run_directory_is_one_by_whatever_links_it_is_called(environ: dict[str, str], tmp_path: Path) -> None:
    """Its lock, the marks of its processes and its ring on scratch follow from the path."""
    run = tmp_path / "disk/logs/swing"
    run.mkdir(parents=True)
    (tmp_path / "logs").symlink_to(tmp_path / "disk/logs")
    (tmp_path / "mine").symlink_to(run)
    environ["SAC_REPLAY_DIR"] = str(tmp_path / "scratch")
    spellings = [run, tmp_path / "logs/swing", tmp_path / "mine", tmp_path / "logs/../logs/swing"]
    ways = [read({**environ, "SAC_EXP_DIR": str(spelling)}, tmp_path) for spelling in spellings]
    assert {way.exp_dir for way in ways} == {run} and len({way.replay_dir for way in ways}) == 1


def test_all_mistakes_are_told_at_once(environ: dict[str, str], tmp_path: Path) -> None:
    del environ["SAC_EXP_NAME"]
    environ |= {"SAC_REVERB_CPUS": "0", "SAC_TRAIN_CPUS": "two", "SAC_CONFIG": "nowhere.json", "SAC_SHARE_CPUS": "yes"}
    environ |= {"SAC_NUM_COLLECT_WORKER": "3", "SAC_REVERB_PORT": "70000", "SAC_SAVE_DEADLINE_SECS": "nan"}
    with pytest.raises(UserError) as raised:
        read(environ, tmp_path)
    text = "\n".join(raised.value.findings)
    assert len(raised.value.findings) == 8
    assert "SAC_EXP_NAME is missing" in text
    assert "SAC_REVERB_CPUS=0 must be an integer from 1 to 4096" in text
    assert "SAC_TRAIN_CPUS=two must be" in text
    assert "SAC_CONFIG=nowhere.json must be an existing file" in text and str(tmp_path / "nowhere.json") in text
    assert "SAC_SHARE_CPUS=yes must be 0 or 1" in text
    assert "SAC_NUM_COLLECT_WORKER is not a known variable, SAC_NUM_COLLECT_WORKERS is" in text
    # What is refused is not noted as the user's own, too.
    assert unknown_names(["SAC_NUM_COLLECT_WORKER", "SAC_BATCH", "SAC_SEED"]) == ["SAC_BATCH"]
    assert "SAC_REVERB_PORT=70000 must be an integer from 1 to 65535" in text
    assert "SAC_SAVE_DEADLINE_SECS=nan must be" in text


@pytest.mark.parametrize("name", ["SAC_ROBOT", "SAC_DATA_DIR", "SAC_TRAIN_CPUS_OF_MY_CLUSTER", "MY_SAC_SEEDS"])
def test_a_users_own_variable_passes(environ: dict[str, str], tmp_path: Path, name: str) -> None:
    environ[name] = "1"
    read(environ, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("SAC_SEEDS", "SAC_SEED"), ("SAC_EXPNAME", "SAC_EXP_NAME"), ("SAC_TRAIN_CPU", "SAC_TRAIN_CPUS"),
     ("SAC_param", "SAC_PARAMS"), ("SAC_SHARED_CPUS", "SAC_SHARE_CPUS")],
)  # fmt: skip
def test_a_near_miss_names_what_was_meant(environ: dict[str, str], tmp_path: Path, wrong: str, right: str) -> None:
    environ[wrong] = "1"
    with pytest.raises(UserError, match=f"{wrong} is not a known variable, {right} is"):
        read(environ, tmp_path)


def test_a_file_of_a_similar_name_is_offered(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"SAC_PARAMS=.*none of these is one: .*; .*/my_params\.py is meant"):
        read({**environ, "SAC_PARAMS": "elsewhere/myparams.py"}, tmp_path)


def test_the_run_name_stays_below_logs(environ: dict[str, str], tmp_path: Path) -> None:
    for name in ("../elsewhere", "/etc"):
        with pytest.raises(UserError, match="SAC_EXP_NAME"):
            read({**environ, "SAC_EXP_NAME": name}, tmp_path)


def test_every_field_is_a_variable_with_a_meaning() -> None:
    assert [variable.field for variable in VARIABLES] == list(RunVariables.__dataclass_fields__)
    for variable in VARIABLES:
        assert variable.name == f"SAC_{variable.field.strip('_').upper()}" and variable.meaning
    assert VARIABLES[0].meaning == "CPUs of the replay server; auto: 1" and VARIABLES[0].default == "auto"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"SAC_LOCAL_WORKERS": "4"}, "SAC_LOCAL_WORKERS=4 must be at most SAC_NUM_COLLECT_WORKERS=3"),
        ({"SAC_MAX_WORKERS": "2"}, "SAC_MAX_WORKERS=2 must be at least SAC_NUM_COLLECT_WORKERS=3"),
        ({"SAC_MAX_WORKERS": "5", "SAC_DETERMINISTIC": "1"}, "SAC_MAX_WORKERS=5 does not work with SAC_DETERMINISTIC"),
        (
            {"SAC_EXPERT_WORKERS": "2", "SAC_DETERMINISTIC": "1"},
            "SAC_EXPERT_WORKERS=2 does not work with SAC_DETERMINISTIC=1, where a run plans all of its roles and",
        ),
        (
            {"SAC_EXPERT_WORKERS": "2", "SAC_LOCAL_WORKERS": "1"},
            "SAC_EXPERT_WORKERS=2 does not work with SAC_LOCAL_WORKERS=1 below SAC_NUM_COLLECT_WORKERS=3, as with "
            "--nodes: unset it, and let experts join with sac join --role expert",
        ),
        (
            {"SAC_EXPERT_WORKERS": "4094"},
            "SAC_NUM_COLLECT_WORKERS=3 + SAC_EXPERT_WORKERS=4094 must be at most 4096: lower one",
        ),
        (
            {"SAC_EVAL_WORKERS": "2", "SAC_EXPERT_WORKERS": "1", "SAC_MAX_WORKERS": "5"},
            "SAC_MAX_WORKERS=5 must be at least SAC_NUM_COLLECT_WORKERS=3 + SAC_EXPERT_WORKERS=1 + SAC_EVAL_WORKERS=2:",
        ),
        (
            {"SAC_EVAL_WORKERS": "1", "SAC_LOCAL_WORKERS": "1"},
            "SAC_EVAL_WORKERS=1 does not work with SAC_LOCAL_WORKERS=1 below SAC_NUM_COLLECT_WORKERS=3, as with "
            "--nodes: unset it, and let workers join with sac join --role eval, which add to each evaluation",
        ),
        ({"SAC_EXPERT_WORKERS": "-1"}, "SAC_EXPERT_WORKERS=-1 must be an integer from 0 to 4096"),
        ({"SAC_WORKER_ROLE": "play"}, "SAC_WORKER_ROLE=play must be one of 'collect', 'eval', 'expert', 'test'"),
        ({"SAC_SERVER": "node7"}, "SAC_SERVER=node7 must be HOST:PORT, such as node7:8443"),
    ],
)
def test_numbers_of_workers_must_fit_each_other(
    environ: dict[str, str], tmp_path: Path, more: dict[str, str], told: str
) -> None:
    with pytest.raises(UserError) as error:
        read(environ | more, tmp_path)
    assert len(error.value.findings) == 1 and told in error.value.findings[0]


def test_slots_for_workers(environ: dict[str, str], tmp_path: Path) -> None:
    assert (read(environ, tmp_path).local_workers, read(environ, tmp_path).max_workers) == (None, None)
    variables = read(environ | {"SAC_LOCAL_WORKERS": "0", "SAC_MAX_WORKERS": "3"}, tmp_path)
    assert (variables.local_workers, variables.max_workers) == (0, 3)
    assert variables.to_environ()["SAC_LOCAL_WORKERS"] == "0"
    assert plan_for(vars(variables), {}, usable=flat([0, 1, 2])).workers == ()


def test_experts_have_numbers_slots_and_cpus_after_the_planned_workers(environ: dict[str, str], tmp_path: Path) -> None:
    variables = read(environ | {"SAC_EXPERT_WORKERS": "2"}, tmp_path)
    assert (variables.kinds_beside, variables.max_workers) == ({3: "expert", 4: "expert"}, 5)
    assert variables.to_environ()["SAC_EXPERT_WORKERS"] == "2"
    plan = plan_for(vars(variables), {}, usable=flat(range(64)))
    assert len(plan.workers) == 5 and len(plan.ids()) == sum(plan.counts.values())
    assert {len(ids) for ids in plan.workers} == {variables.collect_worker_cpus}
    assert read(environ | {"SAC_EXPERT_WORKERS": "2", "SAC_MAX_WORKERS": "9"}, tmp_path).max_workers == 9


def test_evaluators_come_after_the_experts_also_in_deterministic_runs(environ: dict[str, str], tmp_path: Path) -> None:
    variables = read(environ | {"SAC_EXPERT_WORKERS": "1", "SAC_EVAL_WORKERS": "2"}, tmp_path)
    assert (variables.kinds_beside, variables.max_workers) == ({3: "expert", 4: "eval", 5: "eval"}, 6)
    plan = plan_for(vars(variables), {}, usable=flat(range(64)))
    assert (len(plan.workers), plan.evaluators) == (6, 2) and len(plan.ids()) == sum(plan.counts.values())
    repeatable = read(environ | {"SAC_EVAL_WORKERS": "1", "SAC_DETERMINISTIC": "1"}, tmp_path)
    assert (repeatable.kinds_beside, repeatable.max_workers) == ({3: "eval"}, 4)


@pytest.mark.parametrize(
    ("cpus", "given", "counts"),
    [
        (1, {}, (1, 1, 1, 1, True)),
        (2, {}, (1, 1, 1, 1, True)),
        (3, {}, (1, 1, 1, 1, False)),
        (8, {}, (1, 2, 5, 1, False)),
        (16, {"train_cpus": 3, "collect_worker_cpus": 2, "eval_workers": 1}, (1, 3, 5, 2, False)),
        (2, {"share_cpus": False}, (1, 1, 1, 1, False)),
        (2, {"num_collect_workers": 4}, (1, 1, 4, 1, None)),
        (4, {"local_workers": 3}, (1, 2, 3, 1, False)),
    ],
)
def test_automatic_counts_share_out_the_cpus(cpus: int, given: dict[str, int], counts: tuple[int, ...]) -> None:
    """Replay server, trainer, workers, a worker's CPUs, and whether roles share CPUs."""
    names = ("reverb_cpus", "train_cpus", "num_collect_workers", "collect_worker_cpus", "share_cpus")
    assert tuple(map(automatic_counts(given, cpus).get, names)) == counts


def test_a_vars_file_of_four_lines_is_enough(environ: dict[str, str], tmp_path: Path) -> None:
    four = {name: value for name, value in environ.items() if not name.endswith(("CPUS", "WORKERS"))}
    variables = read(four | {"SAC_COLLECT_WORKER_CPUS": "auto"}, tmp_path)
    assert variables.num_collect_workers >= 1 and variables.reverb_cpus == variables.collect_worker_cpus == 1
    with pytest.raises(UserError, match="SAC_TRAIN_CPUS=some must be an integer from 1 to 4096, or auto"):
        read(four | {"SAC_TRAIN_CPUS": "some"}, tmp_path)


def test_workers_that_join_are_experts_by_their_role_alone(environ: dict[str, str], tmp_path: Path) -> None:
    joins = {"SAC_EXPERT_WORKERS": "2", "SAC_LOCAL_WORKERS": "1", "SAC_SERVER": "localhost:1", "SAC_MAX_WORKERS": "5"}
    variables = read(environ | joins | {"SAC_EVAL_WORKERS": "1"}, tmp_path)
    assert (variables.expert_workers, variables.eval_workers, variables.kinds_beside) == (0, 0, {})
    assert len(plan_for(vars(variables), {}, usable=flat(range(64))).workers) == 1


@pytest.mark.parametrize(
    ("planned", "more", "most"),
    [
        (3, {}, 67),
        (3, {"expert_workers": 2}, 69),
        (3, {"eval_workers": 1}, 68),
        (3, {"deterministic": True}, 3),
        (4090, {}, 4096),
    ],
)
def test_a_gateway_makes_room_for_others(planned: int, more: dict[str, bool], most: int) -> None:
    values = {"num_collect_workers": planned, "gateway_port": 0, **more}
    assert _check_workers(values) == []
    assert values["max_workers"] == most
