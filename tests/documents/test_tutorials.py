"""The code of tutorials does what they say, and messages of the questions are those of the code."""

from __future__ import annotations

import ast
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import shell
from tests.support.documents import ROOT, blocks_of
from tests.support.fakes import agent_of
from tests.support.login_node import User
from tests.support.tiny_agents import ACTION, OBSERVATION
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.checks.findings import Findings
from tfagents_system.envs import loading
from tfagents_system.launch.environment_checks import EnvironmentTrial
from tfagents_system.launch.vars_file import read_vars_file
from tfagents_system.playing.play import make_env
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.replay.sampling import TransitionForm
from tfagents_system.settings import params_check
from tfagents_system.settings.load_params import load_env_config, load_params_class
from tfagents_system.settings.variables import RunVariables, read_variables

DOCS = ROOT / "docs"


def write_files(page: str, folder: Path) -> list[str]:
    """Those of a page's blocks whose first line is `# PATH`; a JSON beside them is config.json."""
    written = []
    for block in blocks_of(DOCS / page):
        first = re.match(r"# ([\w/]+\.\w+)\n", block.text)
        if first:
            written.append(first[1])
            (folder / first[1]).parent.mkdir(exist_ok=True)
            (folder / first[1]).write_text(block.text)
        elif block.language == "json":
            (folder / written[0]).with_name("config.json").write_text(block.text)
    return written


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test imports is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_cart", "params"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("modules")
def test_the_cart_passes_every_check_of_a_start(tmp_path: Path) -> None:
    assert write_files("tutorials/own_environment.md", tmp_path) == [
        "cart/my_cart.py",
        "cart/params.py",
        "cart/vars.sh",
    ]
    cart = tmp_path / "cart"
    told = shell.run("bash", "-c", f"set -a; source {cart}/vars.sh; env").stdout
    environ = dict(line.split("=", 1) for line in told.splitlines() if line.startswith("SAC_"))
    variables = RunVariables(**read_variables(environ, vars_file=cart / "vars.sh", root=ROOT)[0])
    assert (variables.exp_name, variables.num_collect_workers) == ("cart", 2)
    params = load_params_class(variables.params)(load_env_config(variables.config))
    assert params.env_ctor().mass == 1.0 and not params_check.check_params(params)
    (hooks,) = [each.text for each in blocks_of(DOCS / "tutorials/own_environment.md") if "eval_env_args" in each.text]
    pasted: dict[str, Any] = {}
    exec(textwrap.dedent(hooks), pasted)
    varied = type("TrainParams", (type(params),), pasted)({**params.env_config, "mass": 7.0})
    with (
        loading.make_collect_env(varied, 2, 0) as collect_env,
        loading.make_eval_env(varied, 0, collect_env, 0) as eval_env,
    ):
        assert [env.user_env.unwrapped.mass for env in (collect_env, eval_env)] == [1.2, 1.0]
    checks = Findings()
    EnvironmentTrial(params, 0, checks).run()
    assert not checks.errors and not checks.notes
    with make_env(params, 0, render=True) as env:
        env.reset()
        picture, place = env.render_frame(), env.user_env.unwrapped.place
    blue = np.nonzero((picture == (40, 80, 220)).all(-1))[1]
    assert picture.shape == (64, 256, 3) and abs(blue.mean() + 0.5 - 64 * (place + 2)) <= 1.0


@pytest.mark.usefixtures("modules")
def test_algorithms_of_ones_own_do_what_they_say(tmp_path: Path) -> None:
    assert write_files("tutorials/add_an_algorithm.md", tmp_path) == ["mean_target_params.py", "td3_params.py"]
    params_class = load_params_class(tmp_path / "mean_target_params.py")
    small = {"actor_fc_layer_params": (8,), "critic_joint_fc_layer_params": (8,)}
    td3 = agent_of(load_params_class(tmp_path / "td3_params.py"), OBSERVATION, ACTION, **small)
    update = BlockUpdate(td3, 4, TransitionForm())
    before = [network.variables[0].numpy() for network in (td3.actor, td3.target_actor, *td3.targets)]
    shapes = OBSERVATION.shape, ACTION.shape, (), (), OBSERVATION.shape
    arrays = [np.ones((2, 4, *shape), np.float32) for shape in shapes]
    assert update.kind == "fused" and update(arrays).keys() == {"critic_loss", "q_mean"}
    after = [network.variables[0].numpy() for network in (td3.actor, td3.target_actor, *td3.targets)]
    assert all((one != other).any() for one, other in zip(before, after, strict=True))
    assert make_worker_policy(td3, 0).inference == "numpy"
    agent = agent_of(params_class, OBSERVATION, ACTION, **small)
    assert type(agent).__name__ == "MeanTarget" and len(agent.critics) == 4
    given = [tf.constant([1.0, 2.0]), tf.constant([3.0, 6.0]), tf.constant([5.0, 4.0]), tf.constant([7.0, 0.0])]
    values = iter(given)
    agent.values = lambda *_: next(values)
    assert agent.next_values(None, None, None).numpy().tolist() == [4.0, 3.0]


def test_the_ring_of_the_cluster_is_on_the_disk_of_the_jobs_node(tmp_path: Path) -> None:
    (lines,) = [each.text for each in blocks_of(DOCS / "tutorials/cluster_in_ten_minutes.md") if ":=" in each.text]
    user = User(tmp_path)
    user.write_vars(lines)
    done = user.submit()
    assert done.returncode == 0, done.stderr
    values = user.resolved(SLURM_TMPDIR="/of/the job")
    assert (values["SAC_REPLAY_DIR"], values["SAC_JOB_PRELUDE"]) == ("/of/the job", "module load gcc")
    here = read_vars_file(user.folder / "vars.sh", {"PATH": os.environ["PATH"]})
    assert here["SAC_REPLAY_DIR"] == "", "as if it were not set, on the login node"


# Messages.


def test_messages_of_the_questions_are_in_the_code() -> None:
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", (DOCS / "faq.md").read_text())
    texts = list(source_texts())
    missing = [
        message
        for message in quoted
        if not any(re.search(r".*".join(map(re.escape, message.split("..."))), text) for text in texts)
    ]
    assert not missing and len(quoted) >= 12


def source_texts() -> list[str]:
    """Every text of the package's programs, with spaces for what is filled in."""
    texts = []
    for path in (ROOT / "tfagents_system").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else " X " for part in node.values)
                texts.append("".join(map(str, parts)).replace("= X ", "=X").replace(" X ", "X"))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    scripts = [*(ROOT / "tfagents_system").rglob("*.sh"), ROOT / "setup.sh"]
    return texts + [line for script in scripts for line in script.read_text().splitlines()]
