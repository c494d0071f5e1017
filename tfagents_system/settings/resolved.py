"""What a run is and how this start runs it, resolved once: run.json, which every process of the run reads.

{"id": 7, "seed": 3, "overrides": {...}, "attributes": {...}, "config": {...}, ...    fixed for the run's life
 "start": {"variables": {"train_cpus": 2, ...}, ...}}                                 written anew by each start

Overrides of one run are attributes of TrainParams, keys of the JSON and SAC_ variables, without editing a file:

    ./run_script.sh VARS.sh --set batch_size=512 --set config.horizon=500 --set SAC_SEED=3

A bare name is an attribute of TrainParams, `config.a.b` a key of the JSON, `SAC_X` a variable. Values are JSON, else
text; those of variables are text. Objects are merged, key by key, into those of the JSON and into dictionaries of
TrainParams (`critic_optimizer.name=sgd`); null removes a key, {} all of them. What a run began with is in its run.json.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfagents_system.checks.rules import integer_from, is_kept, near_misses
from tfagents_system.errors import UserError, shown
from tfagents_system.hyperparameters import described_by
from tfagents_system.settings.params_check import CONFIG_KEYS
from tfagents_system.settings.values import as_text, by_name, in_words, leaves_of, merge, parse_value
from tfagents_system.settings.variables import VARIABLES, RunVariables
from tfagents_system.train_params_base import TrainParamsBase

CONFIG = "config"
HORIZON = "horizon"
_SIMILARITY = 0.7  # The name is refused in any case: what is meant may be guessed more freely.
_VARIABLES = tuple(variable.name for variable in VARIABLES)
_EARLY_VARIABLES = tuple(variable.name for variable in VARIABLES if variable.is_early)
# Variables that stay what the run began with.
FIXED = ("seed", "envs_per_worker", "deterministic")
# Those that a role which joins the run takes over from it.
SHARED = (
    *FIXED,
    "exp_name",
    "reverb_cpus",
    "train_cpus",
    "num_collect_workers",
    "local_workers",
    "expert_workers",
    "eval_workers",
    "max_workers",
    "step_timeout_secs",
    "straggler_secs",
)
# And of `Overrides.defaults`, each with its rule.
_SHARED_DEFAULTS = {HORIZON: integer_from(1)} | {
    name: attribute.rule
    for name, attribute in described_by(TrainParamsBase).items()
    if any(map(attribute.replaces_default, attribute.by_algorithm.named))
    or name
    in (
        *("env_steps_per_iter", "log_period_iters", "initial_collect_steps"),
        *("eval_period_iters", "eval_period_env_steps", "checkpoint_period_env_steps"),
    )
}
_PATHS = tuple(variable.field for variable in VARIABLES if variable.kind.is_path)
_UNSAVED = ("job_prelude", "exec_prefix")  # People put keys into them: `export HF_TOKEN=...`.
# Attributes that say when a run ends.
SETTINGS_OF_END = ("num_iter", "stop_when", "max_hours", "num_env_steps")


# What is overridden.


class Setting(NamedTuple):
    """One override as it was given; `source` says where: `--set`, `task 3 of my_grid.json`."""

    name: str
    value: Any
    source: str


@dataclasses.dataclass(frozen=True)
class Overrides:
    """How one run differs from what its files say.

    Attributes:
      params: Values by attribute of TrainParams; objects are merged into dictionaries.
      config: What is merged into the configuration.
      variables: SAC_ variables, as text.
      defaults: Values by attribute of TrainParams that the run began with and that nobody had given, see
        `defaults_of`, and `horizon` where the configuration has none. A start keeps those that nobody has given since.
    """

    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        """All values by attribute of TrainParams."""
        return {name: value for name, value in self.defaults.items() if name != HORIZON} | self.params

    @classmethod
    def from_settings(cls, settings: Sequence[Setting], variables: Collection[str] = ()) -> tuple[Overrides, list[str]]:
        """Sorts settings by what they override.

        Args:
          settings: In any order.
          variables: SAC_ names that are known beside our own: those of the environment.

        Returns:
          The overrides, and what is wrong: impossible names, impossible values, a name given twice.
        """
        overrides = cls()
        findings: list[str] = []
        seen: dict[str, str] = {}
        for setting in settings:
            try:
                tree, where, path, value = overrides._place(setting, variables)
            except ValueError as error:
                findings.append(f"{setting.source}: {error}")
                continue
            for key in reversed(path):
                value = {key: value}
            for leaf, new in leaves_of(value):
                name = ".".join((*where, *leaf))
                if twice := [other for other in seen if _is_within(name, other) or _is_within(other, name)]:
                    findings.append(f"{name} is given twice, by {seen[twice[0]]} and {setting.source}: remove one")
                else:
                    seen[name] = setting.source
                    _put(tree, leaf, new)
        return overrides, findings

    @classmethod
    def of_run(cls, run: Mapping[str, Any]) -> Overrides:
        """Those of a run.json; none where it has none."""
        return cls(**run.get("overrides", {}))

    def replaced_by(self, given: Overrides) -> Overrides:
        """These, with `given` in their place wherever both say something; they keep their `defaults`."""
        return Overrides(
            _replaced(self.params, given.params),
            _replaced(self.config, given.config),
            self.variables | given.variables,
            self.defaults,
        )

    def settings(self) -> dict[str, Any]:
        """Values by name, as --set takes them; one name for each key of the configuration and of dictionaries."""
        return by_name(self.params, self.config, self.variables)

    def in_words(self) -> str:
        """`batch_size=512 config.horizon=500`; empty where nothing is overridden."""
        return in_words(self.settings())

    def unknown_keys(self, env_config: Mapping[str, Any]) -> list[str]:
        """Overridden keys that the configuration has not: nobody would read them, and they would change nothing."""
        return [text for path, _ in leaves_of(self.config) if (text := _unknown_key(path, env_config))]

    def merged(self, env_config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration with what is overridden, without `unknown_keys`; `env_config` itself stays unchanged."""
        known: dict[str, Any] = {}
        for path, value in leaves_of(self.config):
            if _unknown_key(path, env_config) is None:
                _put(known, path, value)
        default = {HORIZON: self.defaults[HORIZON]} if HORIZON in self.defaults else {}
        return merge(copy.deepcopy({**default, **env_config}), known)

    def _place(
        self, setting: Setting, variables: Collection[str]
    ) -> tuple[dict[str, Any], tuple[str, ...], list[str], Any]:
        """A tree, what precedes names in it, the path there, and the value; a ValueError says what is wrong."""
        name, value, _ = setting
        if name.startswith("SAC_"):
            if name not in _VARIABLES and name not in variables:
                meant = [right for _, right in near_misses([name], _VARIABLES, _SIMILARITY)]
                hint = f"{meant[0]} is meant" if meant else "docs/reference/variables.md has them all"
                raise ValueError(f"{name} is not a known variable: {hint}")
            if name in _EARLY_VARIABLES:
                raise ValueError(f"{name} is read before --set: put it into the vars file")
            return self.variables, (), [name], as_text(value)
        if name.upper() in _VARIABLES:
            raise ValueError(f"{name} is no attribute of TrainParams: {name.upper()} is meant")
        first, *keys = path = name.split(".")
        if not all(path):
            raise ValueError(f"{name} has an empty key: write config.KEY, as in config.horizon=200")
        if first == CONFIG:
            if not keys and not (isinstance(value, dict) and value):
                raise ValueError(f"config must be an object of keys, found {shown(value)}: write config.KEY=VALUE")
            return self.config, (CONFIG,), keys, value
        if first == "compute_config":
            raise ValueError("compute_config follows from the variables: override those, as in SAC_TRAIN_CPUS=2")
        if first == "env_config" or first.startswith("_") or not first.isidentifier():
            raise ValueError(f"{name} must be a public attribute of TrainParams, config.KEY or SAC_NAME")
        for _, right in near_misses([first], described_by(TrainParamsBase)):  # Params may not have it either.
            raise ValueError(f"{name} is not known: {right} is meant")
        return self.params, (), path, value


def _is_within(name: str, other: str) -> bool:
    return f"{name}.".startswith(f"{other}.")


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _replaced(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        name: _replaced(before[name], value)
        for name, value in given.items()
        if isinstance(value, dict) and value and isinstance(before.get(name), dict)
    }
    return {**before, **given, **both}


def parse_assignments(texts: Sequence[str]) -> tuple[list[Setting], list[str]]:
    """Reads `NAME=VALUE` for each; returns the settings, and what is wrong."""
    settings, findings = [], []
    for text in texts:
        name, separator, value = text.partition("=")
        name = name.strip()
        if not separator or not name:
            findings.append(f"--set {text}: it must be NAME=VALUE, as in --set batch_size=512")
            continue
        try:
            settings.append(Setting(name, value if name.startswith("SAC_") else parse_value(value), "--set"))
        except ValueError as error:
            findings.append(f"--set {text}: {error}")
    return settings, findings


def _unknown_key(path: Sequence[str], env_config: Mapping[str, Any]) -> str | None:
    """Why a key can't be overridden; None where it can: it is there, or the toolkit knows it and checks it itself."""
    name = ".".join((CONFIG, *path))
    node: Any = env_config
    for depth, key in enumerate(path):
        if not isinstance(node, Mapping):
            return f"{name} has no place: {'.'.join((CONFIG, *path[:depth]))} is {shown(node)}: set that to an object"
        if key in node:
            node = node[key]
            continue
        if path[0] in CONFIG_KEYS:
            return None
        meant = [right for _, right in near_misses([key], node, _SIMILARITY)]
        there_are = f"{meant[0]} is meant" if meant else f"there are {', '.join(map(str, node)) or 'none'}"
        return f"{name} is not in SAC_CONFIG ({there_are}): correct it, or add the key to the JSON"
    return None


# All settings, in run.json.


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
      variables: Of this start.
      overrides: How the run differs from what its files say.
      attributes: All of TrainParams by name, as JSON has them.
      config: The configuration with what is merged into it.
    """

    variables: RunVariables
    overrides: Overrides = dataclasses.field(default_factory=Overrides)
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Those of a run.json.

        Raises:
          UserError: The run is not prepared, or its file is damaged.
        """
        run = read_run(path)
        try:
            values = {**run["start"]["variables"], **{name: run[name] for name in FIXED}}
            given = {
                name: Path(value) if name in _PATHS and value is not None else value for name, value in values.items()
            }
            return cls(RunVariables(**given), Overrides.of_run(run), run.get("attributes", {}), run.get("config", {}))
        except (KeyError, TypeError):
            raise UserError(f"{path} says nothing of a start: start the run, or restore the file") from None

    def of_run(self) -> dict[str, Any]:
        """The part that is fixed for the run's life."""
        fixed = {name: getattr(self.variables, name) for name in FIXED}
        overrides = dataclasses.asdict(self.overrides)
        return {**fixed, "overrides": overrides, "attributes": _finite(self.attributes), "config": _finite(self.config)}

    def shared(self) -> dict[str, Any]:
        """What a role takes over that joins the run from another machine, see `joined`."""
        values = {name: getattr(self.variables, name) for name in SHARED}
        return {"variables": values, "defaults": dict(self.overrides.defaults)}

    def joined(self, shared: Mapping[str, Any]) -> Settings:
        """These, with what the run that is joined shares."""
        told = shared["variables"]
        kinds: dict[str, Any] = {name: str if name == "exp_name" else (int, float, type(None)) for name in SHARED}
        variables = {name: told[name] for name in SHARED if name in told and isinstance(told[name], kinds[name])}
        if missing := [name for name in SHARED if name not in variables]:
            raise UserError(f"the run that is joined says nothing usable of {', '.join(missing)}: install its version")
        if self.variables.trainer_server is not None:  # Its CPUs are this machine's.
            variables |= {name: getattr(self.variables, name) for name in ("reverb_cpus", "train_cpus")}
        told_defaults = {name: value for name, value in shared["defaults"].items() if name in _SHARED_DEFAULTS}
        defaults = {name: value for name, value in told_defaults.items() if is_kept(_SHARED_DEFAULTS[name], value)}
        overrides = dataclasses.replace(self.overrides, defaults=defaults)
        return Settings(dataclasses.replace(self.variables, **variables), overrides, self.attributes, self.config)


def settings_of_end(attributes: Mapping[str, Any]) -> str:
    """Attributes that say when a run ends, as one text: a run that ended early ended because of these."""
    num_iter, stop_when, max_hours, num_env_steps = (attributes[name] for name in SETTINGS_OF_END)
    numbers = None if stop_when is None else {name: float(value) for name, value in stop_when.items()}
    hours, steps = (None if value is None else float(value) for value in (max_hours, num_env_steps))
    return json.dumps([int(num_iter), numbers, hours, steps], sort_keys=True)


def of_start(variables: RunVariables) -> dict[str, Any]:
    """The variables of a start as JSON has them."""
    values = {name: value for name, value in vars(variables).items() if name not in (*FIXED, *_UNSAVED)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def read_run(path: Path) -> dict[str, Any]:
    """The content of a run.json; empty for a run that was never prepared.

    Raises:
      UserError: It can't be read, or holds something else.
    """
    try:
        run = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or choose another SAC_EXP_NAME") from None
    if not isinstance(run, dict):
        raise UserError(f"{path} must hold an object: restore it, or choose another SAC_EXP_NAME")
    return run


def _finite(value: Any) -> Any:
    """With texts instead of the numbers that JSON lacks, `inf` and `nan`."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
