"""Settings of one run: read, sorted, merged, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.errors import UserError
from tfagents_system.overrides import Overrides, Setting, parse_assignments, parse_value


def sorted_out(*texts: str, variables: tuple[str, ...] = ()) -> tuple[Overrides, list[str]]:
    settings, findings = parse_assignments(texts)
    overrides, found = Overrides.from_settings(settings, variables)
    return overrides, findings + found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512), ("1e-3", 1e-3), ("true", True), ("null", None), ("[256, 256]", [256, 256]),
        ('{"a": 1}', {"a": 1}),
        ("bfloat16", "bfloat16"), ("", ""), ("a=b", "a=b"), ('"512"', "512"), ("/some/path", "/some/path"),
    ],
)  # fmt: skip
def test_values_are_json_or_text(text: str, value: Any) -> None:
    assert parse_value(text) == value and type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("True", "JSON writes true"), ("None", "JSON writes null"), ("(1, 2)", r"\[256, 256\]"),
        ("[1,", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"), (".5", "0.5"), ("1_000", "numbers"), ("nan", "numbers"), ("NaN", "numbers"),
        ("007", '"007"'), ("[" * 100_000, "JSON|too deep"),
    ],
)  # fmt: skip
def test_what_python_writes_otherwise_is_refused(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_value(text)


def test_each_setting_goes_where_it_belongs() -> None:
    overrides, findings = sorted_out(
        "train_batch_size=512", "config.env.mass=2", 'config.env={"name": "walker"}', "SAC_SEED=3", "SAC_EXP_NAME=007"
    )
    assert findings == []
    assert overrides.params == {"train_batch_size": 512}
    assert overrides.config == {"env": {"mass": 2, "name": "walker"}}
    assert overrides.variables == {"SAC_SEED": "3", "SAC_EXP_NAME": "007"}
    assert overrides.in_words() == (
        "train_batch_size=512 config.env.mass=2 config.env.name=walker SAC_SEED=3 SAC_EXP_NAME=007"
    )


def test_all_that_is_wrong_is_told() -> None:
    _, findings = sorted_out(
        "num_iter", "=3", "discount=True", "SAC_SED=1", "SAC_OTHERS=1", "_x=1", "env_config=1", "a.b=1",
        "compute_config=1", "config=3", "config.a..b=1", "tau=1", "tau=2", "config.a=1", "config.a.b=1",
    )  # fmt: skip
    text = "\n".join(findings)
    for part in (
        "--set num_iter: it must be NAME=VALUE", "--set =3: it must be NAME=VALUE", "JSON writes true",
        "SAC_SED is not a known variable: SAC_SEED", "SAC_OTHERS is not a known variable: docs/variables.md",
        "_x is private", "env_config must be an attribute", "a.b must be an attribute", "compute_config follows",
        "config must be an object", "config.a..b has an empty key", "tau is given twice, by --set and --set",
        "config.a.b lies in a",
    ):  # fmt: skip
        assert part in text
    assert len(findings) == 13


def test_a_users_own_variable_is_known_where_it_is_set() -> None:
    overrides, findings = sorted_out("SAC_MY_MASS=2", variables=("SAC_MY_MASS",))
    assert (overrides.variables, findings) == ({"SAC_MY_MASS": "2"}, [])


def test_a_value_beside_its_own_keys_is_refused() -> None:
    _, findings = sorted_out("config.a.b=1", "config.a=3")
    assert findings == ["--set: config.a is given key by key as well: remove one"]


@pytest.mark.parametrize(("value", "text"), [(True, "1"), (False, "0"), (3, "3"), (0.5, "0.5"), ("x", "x")])
def test_variables_are_text(value: Any, text: str) -> None:
    overrides, _ = Overrides.from_settings([Setting("SAC_SEED", value, "grid")])
    assert overrides.variables == {"SAC_SEED": text}
    _, findings = Overrides.from_settings([Setting("SAC_SEED", [value], "grid")])
    assert "must be text or a number" in findings[0]


def test_the_configuration_is_merged_key_by_key_and_stays_as_it_was() -> None:
    config = {"horizon": 200, "env": {"mass": 1, "legs": {"left": 1, "right": 2}}, "list": [1, 2], "other": {"x": 1}}
    before = json.dumps(config)
    overrides, _ = sorted_out("config.horizon=500", "config.env.legs.left=9", "config.list=[3]")
    merged = overrides.merged(config)
    assert merged == {"horizon": 500, "env": {"mass": 1, "legs": {"left": 9, "right": 2}}, "list": [3]} | {
        "other": {"x": 1}
    }
    merged["env"]["legs"]["right"] = merged["other"]["x"] = 7
    merged["list"].append(4)
    assert json.dumps(config) == before and overrides.config["list"] == [3]


def test_keys_that_nobody_would_read_are_refused() -> None:
    overrides, _ = sorted_out("config.horizn=1", "config.env.mas=1", "config.new=1", "config.horizon.x=1")
    with pytest.raises(UserError) as raised:
        overrides.merged({"horizon": 200, "env": {"mass": 1}})
    text = "\n".join(raised.value.findings)
    assert len(raised.value.findings) == 4
    assert "config.horizn is not in SAC_CONFIG (horizon is meant)" in text
    assert "config.env.mas is not in SAC_CONFIG (mass is meant)" in text
    assert "config.new is not in SAC_CONFIG (there are horizon, env)" in text
    assert "config.horizon is no object but 200" in text
    added, _ = sorted_out('config.curriculum={"mass": {"iters": [0, 1], "range": [1, 2]}}')
    assert added.merged({"horizon": 1})["curriculum"]["mass"]["range"] == [1, 2]


def test_they_are_read_back_as_written(tmp_path: Path) -> None:
    overrides, _ = sorted_out("train_batch_size=512", 'config.env={"a.b": [1, null]}', "SAC_SEED=3")
    (tmp_path / "overrides.json").write_text(overrides.to_json())
    assert Overrides.read(tmp_path / "overrides.json") == overrides
    assert Overrides.read(tmp_path / "none.json") == Overrides()


@pytest.mark.parametrize("text", ["", "[]", '{"params": 3}', '{"parms": {}}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "overrides.json").write_text(text)
    with pytest.raises(UserError, match="overrides.json"):
        Overrides.read(tmp_path / "overrides.json")
