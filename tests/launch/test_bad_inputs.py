"""A table of what users get wrong, each with what it must be told: the rule, the value found and the remedy."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.prepared_runs import prepare_run
from tfagents_system.launch import prepare, run_settings
from tfagents_system.machine import peers

ROOT = Path(__file__).resolve().parents[2]

PARAMS = """
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    mass = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return np.zeros(2, np.float32)

    def step(self, action):
        return self.observe(), 0.0, False, False, {}

class TrainParams(TrainParamsBase):
    num_iter = 3
    updates_per_iter = 5
    batch_size = 8
    buffer_size = 200
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        return Env()

"""
VARIABLES = {
    "SAC_REVERB_CPUS": "1",
    "SAC_TRAIN_CPUS": "1",
    "SAC_NUM_COLLECT_WORKERS": "1",
    "SAC_COLLECT_WORKER_CPUS": "1",
    "SAC_PARAMS": "params.py",
    "SAC_CONFIG": "config.json",
    "SAC_EXP_NAME": "try",
    "SAC_EXP_DIR": "run",
    "SAC_SHARE_CPUS": "1",
}


@dataclasses.dataclass(frozen=True)
class Bad:
    """One mistake.

    Attributes:
      told: Parts of the one finding that tells it, in their order.
      more: Appended to the params file.
      config: Text of the JSON.
      variables: Changed ones; None removes one.
      params: Text of the params file.
      is_alone: Nothing else is told.
    """

    told: tuple[str, ...]
    more: str = ""
    config: str = '{"horizon": 20}'
    variables: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    params: str = PARAMS
    is_alone: bool = True


def variable(name: str, value: str | None, *told: str) -> Bad:
    return Bad(told, variables={name: value})


def config(text: str, *told: str) -> Bad:
    return Bad(told, config=text)


def curriculum(section: object, *told: str) -> Bad:
    return Bad(told, config=json.dumps({"horizon": 20, "curriculum": section}))


def params(more: str, *told: str) -> Bad:
    return Bad(told, more=more)


def attribute(value: str, *told: str) -> Bad:
    return params(f"TrainParams.{value}", *told)


def env(member: str, *told: str) -> Bad:
    return params(f"Env.{member}", *told)


def step(result: str, *told: str) -> Bad:
    return Bad(told, more=f"Env.step = lambda self, action: {result}")


MASS = {"iters": [0, 5], "range": [1, 2]}
BAD: dict[str, Bad] = {
    # Variables.
    "missing name": variable("SAC_EXP_NAME", None, "SAC_EXP_NAME is missing", "add SAC_EXP_NAME=my_run"),
    "missing params": variable("SAC_PARAMS", "", "SAC_PARAMS is missing", "add SAC_PARAMS=my_params.py"),
    "zero workers": variable("SAC_NUM_COLLECT_WORKERS", "0", "SAC_NUM_COLLECT_WORKERS=0 must be", "from 1 to 4096"),
    "negative CPUs": variable("SAC_REVERB_CPUS", "-2", "SAC_REVERB_CPUS=-2 must be", "from 1"),
    "words for a number": variable("SAC_TRAIN_CPUS", "two", "SAC_TRAIN_CPUS=two must be an integer"),
    "a fraction of a CPU": variable("SAC_COLLECT_WORKER_CPUS", "0.5", "=0.5 must be an integer from 1"),
    "a million workers": variable("SAC_NUM_COLLECT_WORKERS", "1000000", "=1000000 must be", "to 4096"),
    "flag": variable("SAC_SHARE_CPUS", "yes", "SAC_SHARE_CPUS=yes must be 0 or 1"),
    "port": variable("SAC_REVERB_PORT", "70000", "SAC_REVERB_PORT=70000 must be an integer from 1 to 65535"),
    "seconds": variable("SAC_SAVE_DEADLINE_SECS", "nan", "=nan must be a number above 0"),
    "seed": variable("SAC_SEED", "-1", "SAC_SEED=-1 must be an integer from 0"),
    "for those who join": variable("SAC_SERVER", "node7:8443", "SAC_SERVER=node7:8443 is for workers that join"),
    "an expert's run": variable("SAC_WORKER_ROLE", "expert", "SAC_WORKER_ROLE=expert is for workers that join"),
    "too many here": variable("SAC_LOCAL_WORKERS", "2", "SAC_LOCAL_WORKERS=2 must be at most", "WORKERS=1: lower it"),
    "misspelt variable": variable("SAC_SEEDS", "2", "SAC_SEEDS is not a known variable, SAC_SEED is", "rename it"),
    "missing file": variable("SAC_CONFIG", "nowhere.json", "nowhere.json must be an existing file", "/nowhere.json"),
    "folder for a file": variable("SAC_PARAMS", "/tmp", "SAC_PARAMS=/tmp must be an existing file"),
    "no such home": variable("SAC_EXP_DIR", "~nobody-here/run", "must be a path", "no user of that name"),
    "name outside": variable("SAC_EXP_NAME", "../elsewhere", "=../elsewhere must be a name", "SAC_LOGS_DIR"),
    "name of nothing": variable("SAC_EXP_NAME", ".", "SAC_EXP_NAME=. must be a name", "such as pendulum"),
    # The machine.
    "too few CPUs": Bad(
        ("SAC_NUM_COLLECT_WORKERS=999", "needs 1001 CPUs", "are available", "set SAC_SHARE_CPUS=1"),
        variables={"SAC_NUM_COLLECT_WORKERS": "999", "SAC_SHARE_CPUS": "0"},
        is_alone=False,  # So many need much memory, too.
    ),
    "too large a ring": attribute("buffer_size = 10**13", "a run needs", "lower buffer_size", "SAC_REPLAY_DIR"),
    "a ring beyond all numbers": attribute("buffer_size = 10**400", "a run needs", "are free"),
    "run directory below a file": variable("SAC_EXP_DIR", "params.py/run", "can't be a folder", "set SAC_LOGS_DIR"),
    "replay directory below a file": variable("SAC_REPLAY_DIR", "params.py/run", "be a folder", "set SAC_REPLAY_DIR"),
    "too long a name": variable("SAC_EXP_DIR", "x" * 300, "more than 255 bytes", "shorten SAC_EXP_NAME"),
    # The params file.
    "syntax": params("def broken(:", "cannot be imported, correct it: SyntaxError", "(line 32)"),
    "tabs and spaces": params(
        "if True:\n\tx = 1\n        y = 2", "cannot be imported, correct it: SyntaxError", "line 34"
    ),
    "zero bytes": params("x = '\x00'", "cannot be imported", "null bytes"),
    "missing module": params("import no_such_module", "No module named 'no_such_module' (params.py, line 32)"),
    "exception": params("1 / 0", "correct it: ZeroDivisionError: division by zero (params.py, line 32)"),
    "exit": params("raise SystemExit(3)", "cannot be imported, correct it: SystemExit: 3 (params.py, line 32)"),
    "no class": params("Params = TrainParams; del TrainParams", "has no `class TrainParams(", "rename Params"),
    "nothing at all": Bad(("has no `class TrainParams(TrainParamsBase)`: derive one",), params=""),
    "wrong base class": params("class TrainParams: pass", "has no `cl", "found TrainParams = <cl", "derive one"),
    "an object for the class": params("TrainParams = 3", "has no `class TrainParams", "found TrainParams = 3"),
    "no env_ctor": Bad(("has no env_ctor", "add `def env_ctor("), params=PARAMS.replace("env_ctor", "build")),
    "misspelt env_ctor": Bad(("has no env_ctor", "rename env_ctr"), params=PARAMS.replace("env_ctor", "env_ctr")),
    "constructor that raises": params(
        "def init(self, env_config): env_config['gravity']\nTrainParams.__init__ = init",
        "TrainParams(env_config)",
        "raises KeyError: 'gravity' (params.py, line 32)",
        "correct it",
    ),
    "constructor without super": attribute("__init__ = lambda self, config: None", "call super().__init__", "add that"),
    "misspelt attribute": attribute("batchsize = 3", "batchsize is not known: batch_size is meant"),
    "another library's name": attribute("gamma = 0.9", "gamma=0.9 is a setting of", "SBX", ": set discount"),
    "misspelt hook": attribute("actor_ctr = lambda self: 0", "actor_ctr is not known: actor_ctor is meant"),
    "hook that is no method": attribute("agent_ctor = 3", "agent_ctor must be a method, found 3", "rename yours"),
    "discount": attribute("discount = 1.5", "discount must be a number in [0, 1], or a schedule, found 1.5"),
    "a schedule for a count of steps": params(
        "TrainParams.n_step = {'points': [[0, 1], [5, 3]]}", "n_step must be an integer of at least 1, found {'points'"
    ),
    "text for a share": attribute("hindsight_share = 'x'", "hindsight_share must be a number above 0"),
    "text for a rate": attribute("actor_learning_rate = '3e-4'", "must be a number above 0", "found '3e-4'"),
    "float for a count": attribute("num_iter = 3.0", "num_iter must be an integer of at least 1, found 3.0"),
    "array for a number": attribute("discount = np.ones(2)", "must be a number in [0, 1]", "found array("),
    "layers": attribute("actor_fc_layer_params = 256", "positive integers such as (256, 256)", "found 256"),
    "precision": attribute("matmul_precision = 'float16'", "must be one of 'float32', 'bf", "found 'float16'"),
    "property that raises": attribute("num_iter = property(lambda self: 1 / 0)", "num_iter raises ZeroDivisionError"),
    "batch larger than the buffer": attribute("batch_size = 1000", "buffer_size=200 is less", "to at least 1000"),
    "an end by evaluations without any": attribute(
        "num_eval_episodes, TrainParams.stop_when = 0, {'eval_return': 1.0}", "needs evaluations, and num_eval_episodes"
    ),
    # JSON.
    "empty": config(" ", "is empty", 'such as {"horizon": 200}'),
    "trailing comma": config('{"horizon": 20,\n}', "is not valid JSON", "(line 2, column 1", "no comma behind"),
    "single quotes": config("{'horizon': 20}", "(line 1, column 2", "double quotes"),
    "comment": config('{"horizon": 20 // steps\n}', "(line 1, column 16", "no comments"),
    "Python's True": config('{"horizon": 20, "wind": True}', "(line 1, column 25", "true, false and null"),
    "cut off": config('{"horizon": 20', "is not valid JSON: Expecting ',' delimiter (line 1, column 15", "correct it"),
    "a list": config("[20]", 'must hold a JSON object such as {"horizon": 200}, found [20]'),
    "twice": config('{"horizon": 20, "horizon": 30}', 'has the key "horizon" twice', "correct it"),
    "a thousand brackets": config("[" * 5000, "is not valid JSON", "recursion"),
    "no horizon": config('{"gravity": 9.81}', 'has no "horizon"', "add it"),
    "misspelt horizon": config('{"horzion": 20}', '"horzion" in SAC_CONFIG is not known: "horizon" is meant'),
    "horizon 0": config('{"horizon": 0}', '"horizon" in SAC_CONFIG must be an integer of at least 1, found 0'),
    "horizon 2e1": config('{"horizon": 2e1}', "must be an integer of at least 1, found 20.0: write 20"),
    "horizon in quotes": config('{"horizon": "20"}', "found '20': write 20 without quotes"),
    # Curriculum.
    "curriculum is a list": curriculum([1], '"curriculum" must be an object of parameters, found [1]', "remove it"),
    "empty curriculum": curriculum({}, '"curriculum" is empty', "name a parameter"),
    "misspelt curriculum": config('{"horizon": 20, "curiculum": {}}', '"curriculum" is meant'),
    "parameter is a number": curriculum({"mass": 3}, "curriculum.mass must be an object", "found 3"),
    "no range": curriculum({"mass": {"iters": [0]}}, "curriculum.mass has no range: add range", "[1.0, 2.0]"),
    "misspelt iters": curriculum({"mass": {"iter": [0], "range": [1, 2]}}, "iters is meant"),
    "range of three": curriculum({"mass": MASS | {"range": [1, 2, 3]}}, "must be two numbers", "found [1, 2, 3]"),
    "unsorted iters": curriculum({"mass": MASS | {"iters": [5, 0]}}, "that increase, found [5, 0]"),
    "negative iteration": curriculum({"mass": MASS | {"iters": [-1]}}, "integers from 0", "found [-1]"),
    "apply_to_eval": curriculum({"mass": MASS | {"apply_to_eval": 1}}, "must be True or False, found 1"),
    "unknown parameter": curriculum({"weight": MASS}, "Env has no parameter 'weight'", "it knows", "mass", "set_state"),
    # The environment.
    "env_ctor that raises": attribute("env_ctor = lambda self, **k: {}['robot']", "raised KeyError: 'robot", "line 32"),
    "env_ctor that exits": params(
        "def f(self, **k): raise SystemExit(1)\nTrainParams.env_ctor = f", "raised SystemExit: 1"
    ),
    "env_ctor returns nothing": attribute("env_ctor = lambda self, **k: None", "env_ctor returned None", "return env"),
    "vector environment": params(
        "Vector = type('Vector', (gymnasium.vector.SyncVectorEnv,), {'metadata': {}})\n"
        "TrainParams.env_ctor = lambda self, **k: setattr(v := Vector([Env]), 'metadata', {}) or v",
        "vector environment",
        "autoreset mode can't be told",
        "return a single environment",
    ),
    "arguments": attribute("collect_env_args_kwargs = lambda self: {}", "must return a tuple of", "found {}"),
    "arguments that env_ctor has not": params(
        "TrainParams.env_ctor = lambda self, seed=None: Env()\n"
        "TrainParams.collect_env_args_kwargs = lambda self: ((), {'mass': 3})",
        "raised TypeError",
        "'mass'",
    ),
    "discrete actions": params(
        "Env.action_space = gymnasium.spaces.Discrete(3)",
        "algorithm=sac learns continuous actions, and the environment's are discrete (3 actions)",
    ),
    "integer actions": params(
        "Env.action_space = gymnasium.spaces.Box(0, 5, (1,), np.int32)",
        "algorithm=sac learns continuous actions, and the environment's are discrete (6 actions of (1,) in [0, 5])",
    ),
    "unbounded actions": params(
        "Env.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))",
        "is unbounded (low [-inf]",
        "bounds of less than 1e+30",
    ),
    "actions of no dimension": params(
        "Env.action_space = gymnasium.spaces.Box(-1, 1, (0,))",
        "shape (0,), which holds no number",
        "give it at least one",
    ),
    "text observations": env("observation_space = gymnasium.spaces.Text(3)", "which has no fixed shape", "use Box"),
    "NaN": env("observe = lambda self: np.full(2, np.nan)", "the observation of reset() is not finite", "nan"),
    "infinity later": step(
        "(np.array([0, np.inf], np.float32), 0.0, False, False, {})",
        "the observation of step 1 is not finite, inf at [1]: correct what",
    ),
    "wrong shape": env("observe = lambda self: np.zeros(3)", "must have shape (2,)", "found (3,)", "correct the one"),
    "no numbers": env("observe = lambda self: ['a', 'b']", "must be numbers, found ['a', 'b']", "NumPy array"),
    "part out of bounds": params(
        "Env.observation_space = gymnasium.spaces.Dict(a=gymnasium.spaces.Box(0, 1, (2, 2)))\n"
        "TrainParams.strict_observation_bounds = True\n"
        "Env.observe = lambda self: {'a': np.array([[0, 0], [3, 0]])}",
        "a[1, 0] is 3, above its high of 1: correct the observation, or widen the bound",
    ),
    "algorithm": attribute("algorithm = 'sacc'", "TrainParams.algorithm must be", "'sac' is meant"),
    "floats where the space says integers": params(
        "Env.observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)\n"
        "Env.observe = lambda self: np.ones(2) / 2",
        "is float64 where its space is uint8",
        "float dtype",
    ),
    "dictionary without a key": params(
        "Env.observation_space = gymnasium.spaces.Dict(a=gymnasium.spaces.Box(0, 1), b=gymnasium.spaces.Box(0, 1))\n"
        "Env.observe = lambda self: {'a': np.zeros(1)}",
        "has no b",
        "return all keys",
    ),
    "reset that returns nothing": env("reset = lambda self, seed=None: None", "observation of reset()", "found None"),
    "reset that raises": env("reset = lambda self, seed=None: 1 / 0", "its first reset: ZeroDivisionError", "line 32"),
    "step of three": step("(self.observe(), 0.0, False)", "step() must return", "found 3 values"),
    "step of nothing": step("None", "step() must return", "found None"),
    "step that raises": step("1 / 0", "failed in step 1: ZeroDivisionError", "line 32"),
    "no reward": step("(self.observe(), None, False, False, {})", "reward of step 1 must be a finite", "found None"),
    "infinite reward": step(
        "(self.observe(), np.inf, False, False, {})",
        "reward of step 1",
        "finite number, found inf: correct what computes it",
    ),
    "terminated": step("(self.observe(), 0.0, None, False, {})", "terminated of step() must be True", "found None"),
    "done in words": step("(self.observe(), 0.0, 'no', {})", "done of step() must be True or False, found 'no'"),
    "info": step("(self.observe(), 0.0, False, False, 3)", "info of step() must be a dictionary, found 3"),
    "evaluation differs": params(
        "class Other(Env):\n    observation_space = gymnasium.spaces.Box(-1, 1, (3,))\n"
        "TrainParams.env_ctor = lambda self, kind=Env, seed=None: kind()\n"
        "TrainParams.eval_env_args_kwargs = lambda self: ((Other,), {})",
        "evaluation environment differ",
        "the same spaces",
    ),
    "set_state that raises": Bad(
        ("curriculum.mass: set_state({'mass': 2})", "raised ValueError: too heavy (params.py, line 33)"),
        "def set_state(self, state):\n    if state['mass'] > 1: raise ValueError('too heavy')\n"
        "Env.set_state = set_state",
        json.dumps({"horizon": 20, "curriculum": {"mass": MASS}}),
    ),
    # Networks and agent.
    "actor that raises": attribute("actor_ctor = lambda self, *a: 1 / 0", "actor_ctor", "ZeroDivisionError", "line 32"),
    "no agent": attribute("agent_ctor = lambda self, *a: None", "agent_ctor must return a TFAgent, found None"),
    "no observers": attribute("train_observers_ctor = lambda self: None", "must return a list", "found None"),
    "observer that can't be called": attribute("eval_observers_ctor = lambda self: [3]", "must be callable", "found 3"),
}


# Those that one start tells together. An unknown algorithm ends the trial early, a missing file lets it not begin.
TOGETHER = (
    ("missing name", "zero workers", "negative CPUs", "words for a number", "a fraction of a CPU", "flag", "port",
     "seconds", "seed", "for those who join", "an expert's run", "misspelt variable", "missing file",
     "folder for a file"),
    ("missing params", "too many here", "no such home", "name outside"),
    ("missing params", "a million workers", "name of nothing"),
    ("misspelt attribute", "another library's name", "misspelt hook", "hook that is no method", "discount",
     "a schedule for a count of steps", "text for a share", "text for a rate", "float for a count", "layers",
     "precision", "batch larger than the buffer", "algorithm"),
    ("no observers", "observer that can't be called", "no agent"),
)  # fmt: skip


def together(names: Sequence[str]) -> Bad:
    """All of these mistakes at once."""
    chosen = [BAD[name] for name in names]
    variables = {name: value for bad in chosen for name, value in bad.variables.items()}
    return Bad((), "\n".join(bad.more for bad in chosen), chosen[0].config, variables, chosen[0].params)


def make(folder: Path, bad: Bad) -> dict[str, str]:
    """Writes a user's files; returns the variables."""
    (folder / "params.py").write_text(bad.params + bad.more)
    (folder / "config.json").write_text(bad.config)
    variables = {**VARIABLES, **bad.variables}
    for name in ("SAC_PARAMS", "SAC_CONFIG", "SAC_EXP_DIR", "SAC_REPLAY_DIR"):
        if (value := variables.get(name)) and not value.startswith(("~", "/")):
            variables[name] = str(folder / value)
    return {name: value for name, value in variables.items() if value is not None}


def environ_of(variables: Mapping[str, str]) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
    return {**clean, **variables}


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """A params file puts its folder on sys.path and itself among the modules."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("sac_params", None)


SHARED = {name for names in TOGETHER for name in names}


@pytest.mark.parametrize("names", [*TOGETHER, *((name,) for name in BAD if name not in SHARED)], ids=lambda n: n[0])
def test_bad_input_is_told(names: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bads = [BAD[name] for name in names]
    environ = environ_of(make(tmp_path, together(names)))
    before = tree_hash(tmp_path)
    preparation = prepare.Preparation(environ, None)
    preparation.run()
    errors = preparation.findings.errors
    assert all(any(_has_in_order(error, bad.told) for error in errors) for bad in bads), errors
    assert len(errors) == len(bads) or not bads[0].is_alone, errors
    assert all("\n" not in error and len(error) < 900 for error in errors)
    assert "Traceback" not in capsys.readouterr().err
    assert tree_hash(tmp_path) == before


def _has_in_order(text: str, parts: tuple[str, ...]) -> bool:
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def test_all_that_is_wrong_with_settings_is_told_at_once(tmp_path: Path) -> None:
    """Names, kinds of values and values: of --set, the configuration and the params."""
    words = ["SAC_TRAIN_CPU=1", "_mine=1", "batch_sizes=1", "env_ctor=1", "num_iter=x", "discount=2"]
    words += ["config.horizn=3", "config.horizon=0", "nothing"]
    environ = environ_of(make(tmp_path, Bad(())))
    settings = run_settings.resolve(environ, words, vars_file=None, root=tmp_path)
    preparation = prepare.Preparation({**environ, **settings.environ}, None, settings)
    preparation.run()
    told = [
        "NAME=VALUE",
        "SAC_TRAIN_CPU is",
        "_mine must be a public attribute",
        "--set: batch_sizes is not known: batch_size is meant",
        "config.horizn is not",
        '"horizon" in SAC_CONFIG must',
    ]
    told += ["env_ctor is a method", "num_iter must be a number", "discount must be"]
    errors = preparation.findings.errors
    assert len(errors) == len(told) and all(part in error for part, error in zip(told, errors, strict=True)), errors


def test_good_input_is_told_nothing_and_a_ring_on_scratch_needs_disk_for_its_copy_as_well(tmp_path: Path) -> None:
    def rings(**variables: str) -> int:
        good = Bad((), config='{"horizon": 20, "mine": [1]}', variables=variables)
        preparation = prepare.Preparation(environ_of(make(tmp_path, good)), None)
        preparation.run()
        assert preparation.findings.errors == []
        assert preparation.inspection.attributes["num_iter"] == 3 and preparation.inspection.specs
        return preparation.findings.texts("ok", "disk")[0].count("replay buffer")

    assert (rings(), rings(SAC_REPLAY_DIR="scratch")) == (1, 2)


@pytest.fixture
def without_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare.Preparation, "_try_users_code", lambda *args: None)


def test_a_port_in_use_is_told_with_the_remedy(tmp_path: Path, without_trial: None) -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        environ = environ_of(make(tmp_path, variable("SAC_REVERB_PORT", str(port))))
        preparation = prepare.Preparation(environ, None)
        preparation.run()
    (error,) = preparation.findings.errors
    assert f"SAC_REVERB_PORT={port} is in use by" in error and "choose another port" in error


def test_strangers_on_this_machine_are_told_of_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_trial: None
) -> None:
    monkeypatch.setattr(peers, "_TABLES", ())
    environ = environ_of(make(tmp_path, variable("SAC_REPLAY_DIR", "scratch")))
    preparation = prepare.Preparation(environ, None)
    ring: Path = preparation.values["replay_dir"]
    ring.parent.mkdir()
    ring.symlink_to(tmp_path)
    preparation.run()
    link, owners = preparation.findings.errors
    assert f"{ring} is a link" in link and "SAC_REPLAY_DIR" in link
    assert "the kernel does not tell whose a connection is" in owners and "set SAC_ALLOW_STRANGERS=1" in owners


def test_a_run_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_trial: None
) -> None:
    """As root every folder can be written: what the system says is made up here."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and not mode & os.W_OK)
    preparation = prepare.Preparation(environ_of(make(tmp_path, Bad(()))), None)
    preparation.run()
    (error,) = preparation.findings.errors
    assert "can't be written" in error and "set SAC_LOGS_DIR to a folder that is yours" in error


# What is saved stays as it is.


def tree_hash(folder: Path) -> str:
    """Of every file's path, content, mode and time of change."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.name == "run.lock":  # Each start takes it.
            continue
        stat = path.lstat()
        digest.update(f"{path.relative_to(folder)} {stat.st_mode} {stat.st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


CHANGES = {
    "params": variable("SAC_PARAMS", "nowhere.py"),
    "the run's own configuration": Bad((), config='{"horizon": 0}'),
    "the run's own params": params("TrainParams.batch_size = 10**6"),
}


def test_a_refused_change_leaves_a_run_with_checkpoints_as_it_was(tmp_path: Path) -> None:
    assert prepare_run(environ_of(make(tmp_path, Bad(()))))
    run = tmp_path / "run"
    for name in (
        "checkpoints/checkpoint_0000000010/agent.index",
        "replay/reward.bin",
        "policies/best.json",
        "status.json",
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(name.encode() * 100)
    for change in CHANGES.values():
        variables = make(tmp_path, change)
        (run / "params.py").write_text((tmp_path / "params.py").read_text())
        (run / "config.json").write_text((tmp_path / "config.json").read_text())
        before = tree_hash(run)
        assert prepare.check(environ_of(variables), None) == 2
        with pytest.raises(prepare.UserError):
            prepare_run(environ_of(variables))
        assert tree_hash(run) == before
