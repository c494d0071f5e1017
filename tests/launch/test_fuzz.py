"""Whatever stands in variables, JSON and params gives values or findings, never an exception; so do CPU plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.fakes import FakeParams
from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import described_by
from tfagents_system.settings import params_check
from tfagents_system.settings.values import parse_json
from tfagents_system.settings.variables import VARIABLES, RunVariables, read_variables
from tfagents_system.train_params_base import TrainParamsBase

FIELDS = {variable.name: variable.field for variable in VARIABLES}
NAMES = list(FIELDS)
# What breaks readers: signs, exponents, paths, other scripts' digits, bytes that are no UTF-8, far too much.
NASTY = ["", " ", "-0", "+1", "1e3", "0x10", "1_0", "1" * 9, "9" * 5000, "x" * 5000, "nan", "inf", "-inf",
         "\uff11\uff12", "\u00b2", "\0", "\ud800", "\udcff", "a\nb", "{}",
         "~", "~nobody/x", "..", "/", ".", "/dev/null", "/proc/1/cwd/x"]  # fmt: skip
TEXT = st.sampled_from(NASTY) | st.integers().map(str) | st.text(st.characters(codec=None), max_size=20)


@settings(max_examples=100)
@example({"SAC_LOCAL_TRAINER": "-0"})
@example({"SAC_MAX_WORKERS": "-0", "SAC_NUM_COLLECT_WORKERS": "+1", "SAC_GATEWAY_PORT": "0"})
@given(
    st.dictionaries(st.sampled_from([*NAMES, "SAC_SEEDS", "SLURM_ARRAY_TASK_ID", "sac_params", "SAC_"]), TEXT),
)
def test_variables_are_read_or_told(environ: dict[str, str]) -> None:
    values, findings = read_variables(environ, vars_file=None, root=Path("/tmp/root"))
    assert all(isinstance(finding, str) and finding for finding in findings)
    for name, field in FIELDS.items():
        text = environ.get(name, "").strip()
        is_told = any(finding.startswith((f"{name}=", f"{name} is missing")) for finding in findings)
        if text:
            # A refused run directory may be replaced by the name's, a refused number of slots by what there is; a
            # trainer elsewhere may lack another variable.
            may_stay = field in ("exp_dir", "max_workers", "local_trainer", "trainer_server")
            assert (field in values) != is_told or (may_stay and is_told)
    if not findings:
        again = RunVariables(**values).to_environ()
        assert read_variables(again, vars_file=None, root=Path("/tmp/root")) == (values, [])


# JSON.

NUMBER = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 2**63, 1e308, -1e308, True, False])
JSON = st.recursive(
    st.none() | NUMBER | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
PARAMETER = JSON | st.fixed_dictionaries(
    {},
    optional={
        "iters": JSON | st.lists(st.integers(-1, 50), max_size=5),
        "range": JSON | st.lists(NUMBER, min_size=2, max_size=2),
        "apply_to_eval": JSON | st.booleans(),
        "iter": JSON,
        "ranges": JSON,
    },
)
CURRICULUM = JSON | st.dictionaries(st.sampled_from(["mass", "", "apply_to_eval", "iters"]), PARAMETER, max_size=3)
CONFIG = st.fixed_dictionaries(
    {}, optional={"horizon": JSON | st.integers(1, 9), "curriculum": CURRICULUM, "curiculum": JSON, "Horizon": JSON}
)


@settings(max_examples=100)
@given(CONFIG)
def test_any_configuration_is_fine_or_told(config: dict[str, Any]) -> None:
    findings = params_check.check_env_config(config)
    assert all(isinstance(finding, str) and finding for finding in findings)
    if not check_curriculum(config):
        curriculum = Curriculum.from_config(config)
        curriculum.values_at(10, is_eval=True)
        assert all(abs(value) < float("inf") for _, value in curriculum.end_values())


@settings(max_examples=100)
@given(JSON.map(lambda value: json.dumps(value)) | st.text(max_size=40) | st.sampled_from(NASTY), st.data())
def test_any_text_is_json_or_told(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    for each in (text, text[:cut], text[:cut] + "," + text[cut:]):
        try:
            assert isinstance(parse_json(each, "SAC_CONFIG=my.json", "{}"), dict)
        except UserError as error:
            assert all("SAC_CONFIG=my.json" in finding for finding in error.findings)


@settings(max_examples=100)
@given(st.sampled_from(sorted(described_by(TrainParamsBase))), JSON, CONFIG)
def test_any_value_of_an_attribute_is_fine_or_told(name: str, value: Any, config: dict[str, Any]) -> None:
    findings = params_check.check_params(type("TrainParams", (FakeParams,), {name: value})(config))
    assert all(isinstance(finding, str) and finding for finding in findings)
