"""Tries a user's environment before any process starts."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
import tree
from tf_agents.agents import tf_agent
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tfagents_system import learning_notes
from tfagents_system.agents.checkpoints import makeup_of
from tfagents_system.agents.encoder import has_own_networks, is_encoded, smallest_side
from tfagents_system.agents.training_agent import check_agent, make_agent
from tfagents_system.checklist import Check, Checklist
from tfagents_system.curriculum import Curriculum, check_curriculum
from tfagents_system.effects import without_effect
from tfagents_system.envs import hooks, loading, rendering
from tfagents_system.envs.contract import check_contract
from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.envs.faults import EnvironmentFault, describe_error
from tfagents_system.envs.history import has_images, is_image
from tfagents_system.envs.layers import gym_layers
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError, shown
from tfagents_system.launch import costs
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.policies.export import PolicyExport
from tfagents_system.policies.worker_policy import why_not_numpy
from tfagents_system.rules import integer_from, is_kept
from tfagents_system.run_checkpoints import Makeup
from tfagents_system.sequences import sequence_length
from tfagents_system.train_params_base import TrainParamsBase

ENVIRONMENT, CONTRACT, EPISODE = "environment", "reset and step", "episode"
SEEDING, EVALUATION, CURRICULUM = "seeding", "evaluation", "curriculum"
AGENT, RENDERING, DURATION = "agent", "rendering", "duration"

_EPISODE_SECS = 1.0  # Of stepping: a fast simulator's episode is over before, of a slow one this is enough.
_MEASURING_SECS = 1.0
_FEW_STEPS = 5
_COMPARED_STEPS = 20
_CHANNELS = {channels * frames for channels in (1, 3, 4) for frames in (1, 2, 3, 4)}  # Of an image or a stack of some.
_CHEAP_SECS = 0.5  # An environment that takes longer to build is not built again to compare its seeds.

_OWN_NETWORKS = {"agent_ctor", "actor_ctor", "preprocessing_combiner"}

Specs = tuple[Any, Any]  # (observation spec, the environment's own action spec), as envs.specs.save_specs takes them
Enter = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Trial:
    """What the environment and the agent turned out to be.

    Attributes:
      specs: Of the environment.
      resident_bytes: Memory of this process with environments and agent, and of the processes that they started.
      agent_bytes: Of the agent's variables, with what its optimizers will add.
      policy_bytes: Of the policy's variables.
      makeup: Of the agent, to compare with a checkpoint's; None where it could not be built.
    """

    specs: Specs
    resident_bytes: int
    agent_bytes: int
    policy_bytes: int
    makeup: Makeup | None


def check_environment(
    params: TrainParamsBase,
    seed: int,
    checks: Checklist,
    enter: Enter = lambda doing: None,
    *,
    render: bool = False,
    deterministic: bool = False,
    plan: CpuPlan | None = None,
) -> Trial | None:
    """Builds worker 0's environments and the agent, and tries all that a run will ask of them.

    Args:
      params: The user's TrainParams. With an impossible horizon or action_history nothing is tried: the
        checks of the JSON and of TrainParams have told it.
      seed: For environments and actions.
      checks: Gets what was looked at and what was found.
      enter: Called before each call of the user's code that may take long or hang, with what it is.
      render: A picture is drawn, too, and policies of the toolkit's own networks are saved: it takes seconds.
      deterministic: SAC_DETERMINISTIC=1, which not every policy can have.
      plan: Updates and steps are measured on its CPUs, and how long the run takes is told: it takes seconds.

    Returns:
      None where the environment could not be built.
    """
    horizon, action_history = params.env_config.get("horizon"), params.action_history
    if not is_kept(integer_from(1), horizon) or not is_kept(integer_from(0), action_history):
        return None
    return _Check(params, seed, checks, enter).run(render, deterministic, plan)


class _Check:
    """One check of an environment; the steps of `run` in their order."""

    def __init__(self, params: TrainParamsBase, seed: int, checks: Checklist, enter: Enter) -> None:
        self._params = params
        self._seed = seed
        self._checks = checks
        self._enter = enter
        self._build_secs = 0.0
        self._eval_steps: list[Any] = []
        self._episode_steps: int | None = None  # Of the episode with random actions, where it has ended,
        self._return = 0.0  # and its return.

    @property
    def _is_fine(self) -> bool:
        own = (ENVIRONMENT, CONTRACT, EPISODE, SEEDING, EVALUATION, CURRICULUM, AGENT)
        return not any(self._checks[name].errors for name in own if name in self._checks)

    def run(self, render: bool, deterministic: bool, plan: CpuPlan | None) -> Trial | None:
        if render:
            rendering.prepare_headless()  # Before the user's code imports MuJoCo.
        agent = makeup = None
        with contextlib.ExitStack() as stack:
            collect_env = self._build_collect_env(stack)
            if collect_env is None:
                return None
            specs = collect_env.observation_spec(), collect_env.environment_action_spec
            first = self._try_episode(collect_env)
            eval_env = self._try_evaluation(stack, collect_env)
            if eval_env is not None and self._is_fine:
                self._compare_seeds(eval_env, first)
                self._try_curriculum(collect_env, eval_env)
            if not self._checks.errors:  # Of the params either: networks are built from them.
                self._enter("building the agent")
                agent = _build_agent(self._params, collect_env, self._checks[AGENT])
                frame_stack = self._params.frame_stack
                if deterministic and agent is not None and (reason := why_not_numpy(agent, frame_stack)):
                    self._checks[AGENT].errors.append(
                        f"SAC_DETERMINISTIC=1 needs a policy that workers can run in NumPy, and {reason}: use the "
                        "default actors, or SAC_DETERMINISTIC=0"
                    )
            resident_bytes = _resident_bytes()
            if agent is not None:
                makeup = makeup_of(agent)  # Before an update of it, which may make variables.
                self._enter("trying an update of the agent")
                _try_update(self._params, agent, self._checks[AGENT])
                is_own = bool(_OWN_NETWORKS & _overridden(self._params))
                # Those of the toolkit are known to be saved: no start waits for it.
                if (render or is_own) and not self._checks[AGENT].errors:
                    self._enter("saving the agent's policies")
                    _try_saving(self._params, agent, specs[1], self._checks[AGENT])
            sizes = _sizes_of(agent)  # Before updates, which make the optimizers' variables.
            if plan is not None and agent is not None and self._is_fine:
                self._foretell(agent, collect_env, plan, deterministic)
            if render and eval_env is not None and self._is_fine:
                self._try_rendering(eval_env)
            self._enter("closing the environments")
            with self._told(ENVIRONMENT, "closing the environments"):
                stack.close()
        return Trial(specs, resident_bytes, *sizes, makeup)

    def _build_collect_env(self, stack: contextlib.ExitStack) -> TrainingEnvironment | None:
        self._enter("building the collect environment")
        check = self._checks[ENVIRONMENT]
        began = time.perf_counter()
        with self._told(ENVIRONMENT, "the collect environment"):
            env = stack.enter_context(loading.make_collect_env(self._params, 0, self._seed))
            self._build_secs = time.perf_counter() - began
            check.facts.append(f"{_name_of(env.user_env)}, built in {self._build_secs:.2g} s")
            check.facts.append(f"observations {_in_words(env.observation_spec())}")
            check.facts.append(f"actions {_bounds_in_words(env.environment_action_spec)}")
            check.errors += _check_action_count(self._params, env)
            check.errors += _check_frame_stack(self._params, env)
            if not self._checks.errors:  # Of the params either.
                _check_images(self._params, env, check)
                check.notes += _without_effect_here(self._params, env)
            return env
        return None

    def _try_episode(self, env: TrainingEnvironment) -> list[Any]:
        """An episode with random actions, as a worker runs it; returns its first time steps."""
        raw = Check(CONTRACT)
        first: list[Any] = []
        with self._told(EPISODE, "the collect environment"):
            first = self._run_episode(env)
        self._enter("reset() and step() of the collect environment")
        # What makes the conversion fail is told best by what the environment itself returns.
        with contextlib.suppress(Exception):
            if hasattr(env.user_env, "action_space") and not isinstance(env.user_env, EnvProcess):
                check_contract(env.user_env, raw)
        if raw.errors:
            self._checks[EPISODE].errors.clear()
        self._checks[CONTRACT].facts += raw.facts
        self._checks[CONTRACT].errors += raw.errors
        return first

    def _run_episode(self, env: TrainingEnvironment) -> list[Any]:
        rng = np.random.default_rng(self._seed)
        self._enter("reset() of the collect environment")
        time_step = env.reset()
        first = [time_step]
        self._enter("step() of the collect environment")
        began, steps, episode_return = time.perf_counter(), 0, 0.0
        while time_step.step_type != ts.StepType.LAST and time.perf_counter() - began < _EPISODE_SECS:
            time_step = env.step(_random_action(env, rng))
            episode_return += float(time_step.reward)
            steps += 1
            if len(first) <= _COMPARED_STEPS:
                first.append(time_step)
        secs = max(1e-9, time.perf_counter() - began)
        check = self._checks[EPISODE]
        check.facts.append(_end_in_words(time_step, steps, self._params.horizon))
        check.facts.append(f"{steps / secs:,.0f} steps/s")
        if time_step.step_type == ts.StepType.LAST:
            self._episode_steps, self._return = steps, episode_return
        if not self._checks.errors:  # Of the params either.
            check.notes += _check_sequences(self._params, time_step, steps)
            check.notes += self._check_ratio()
        return first

    def _check_ratio(self) -> list[str]:
        workers = self._params.compute_config.get("num_collect_workers")
        if not workers:
            return []
        steps = self._episode_steps or self._params.horizon
        return learning_notes.ratio(costs.updates_per_step(self._params, workers, steps))

    def _try_evaluation(self, stack: contextlib.ExitStack, collect_env: TrainingEnvironment) -> Any:
        self._enter("building the evaluation environment")
        was_fine, check = self._is_fine, self._checks[EVALUATION]
        with self._told(EVALUATION, "the evaluation environment"):
            eval_env = stack.enter_context(loading.make_eval_env(self._params, 0, collect_env, self._seed))
            check.errors += _check_same_specs(collect_env, eval_env)
            if was_fine and not check.errors:  # Else most likely the same again.
                self._enter("reset() or step() of the evaluation environment")
                self._eval_steps = _take_steps(eval_env, self._seed, _COMPARED_STEPS)
                check.facts.append("the same observations and actions as for collecting")
            return eval_env
        return None

    def _compare_seeds(self, eval_env: TrainingEnvironment, first: list[Any]) -> None:
        """Whether the same seed gives the same episode twice."""
        again = self._eval_steps
        if not _are_alike(self._params):
            if self._build_secs > _CHEAP_SECS:
                self._checks[SEEDING].facts.append("not looked at: building another environment takes too long")
                return
            self._enter("building the collect environment again")
            with contextlib.ExitStack() as stack, self._told(SEEDING, "a second collect environment"):
                other = stack.enter_context(loading.make_collect_env(self._params, 0, self._seed))
                again = _take_steps(other, self._seed, _COMPARED_STEPS)
        differs = next((k for k, pair in enumerate(zip(first, again, strict=False)) if not _same(*pair)), None)
        if differs is None:
            self._checks[SEEDING].facts.append("the same seed gives the same episode")
            return
        where = f"in step {differs}" if differs else "in the first observation"
        self._checks[SEEDING].notes.append(
            f"two environments with the same seed differ {where}: a run can't be repeated exactly. Draw random numbers "
            "from self.np_random or from a generator seeded by reset(seed=...) or by env_ctor's seed"
        )

    def _try_curriculum(self, collect_env: TrainingEnvironment, eval_env: TrainingEnvironment) -> None:
        """Sets every parameter to its first and to its last value and takes a few steps with each."""
        if not self._params.env_config.get("curriculum") or check_curriculum(self._params.env_config):
            return  # None, or told by the check of the JSON.
        check = self._checks[CURRICULUM]
        curriculum = Curriculum.from_config(self._params.env_config)
        wrong: set[str] = set()
        for name, value in curriculum.end_values():
            if name in wrong:
                continue  # Most likely the same again.
            self._enter(f"set_state() of {name} = {value} or step() with it")
            envs = (collect_env, eval_env) if curriculum.apply_to_eval(name) else (collect_env,)
            if found := [finding for env in envs for finding in _try_value(env, name, value)]:
                wrong.add(name)
                check.errors += dict.fromkeys(found)
        if not check.errors:
            values = ", ".join(f"{name} = {value:g}" for name, value in curriculum.end_values())
            check.facts.append(f"set_state works with {values}")

    def _foretell(self, agent: Any, env: TrainingEnvironment, plan: CpuPlan, deterministic: bool) -> None:
        """Measures updates and steps, and tells how long the run takes."""
        params, cpus = self._params, costs.shared_cpus(plan)
        # With --check alone: many such runs learn all the same.
        self._checks[EPISODE].notes += learning_notes.returns(params, self._return)
        # The plan has experts, too, and has not those that join from elsewhere; a run has either.
        workers = max(params.compute_config.get("num_collect_workers", 0), len(plan.workers))
        with self._told(DURATION, "measuring"):
            self._enter("measuring steps with the agent's policy")
            with costs.on_cpus(plan.workers[0]):
                step, length = costs.time_steps(params, agent, [env], _MEASURING_SECS, self._seed)
            self._enter("measuring updates of the agent")
            with costs.on_cpus(plan.trainer):
                update = costs.time_updates(params, agent, _MEASURING_SECS, self._seed)
            measured = costs.Costs(update, step, length or self._episode_steps or params.horizon)
            duration = costs.foretell(params, measured, workers, cpus, takes_turns=deterministic)
            facts, notes = costs.in_words(duration, measured, params, cpus)
            self._checks[DURATION].facts += facts
            self._checks[DURATION].notes += notes

    def _try_rendering(self, env: TrainingEnvironment) -> None:
        self._enter(RENDERING)
        check = self._checks[RENDERING]
        try:
            with contextlib.ExitStack() as stack:
                if hooks.takes_render_mode(self._params):  # Another one: as run.py builds it.
                    env = stack.enter_context(loading.make_play_env(self._params, self._seed, render=True))
                rendering.enable_frames(env.user_env)
                env.reset()
                frame = env.render_frame()
        except Exception as error:
            told = error.findings[0] if isinstance(error, UserError) else describe_error(error)
            check.notes.append(f"{told}; training needs no pictures")
        else:
            check.facts.append(f"frames of {frame.shape[1]} x {frame.shape[0]}")

    @contextlib.contextmanager
    def _told(self, name: str, what: str) -> Iterator[None]:
        with _told(self._checks[name].errors, what):
            yield


def _build_agent(params: TrainParamsBase, env: TrainingEnvironment, check: Check) -> Any:
    """Builds what the user's other hooks build: a mistake in them would end every role again and again."""
    specs = tf.nest.map_structure(tensor_spec.from_spec, (env.observation_spec(), env.action_spec()))
    try:
        agent = make_agent(params, specs[0], specs[1], tf.Variable(0, dtype=tf.int64))
    except UserError as error:
        check.errors += error.findings
        return None
    except (Exception, SystemExit) as error:
        check.errors.append(
            f"agent_ctor, actor_ctor or critic_ctor raised {describe_error(error)}: correct the hook, or remove it"
        )
        return None
    check.facts.append(f"{type(agent).__name__}, {sum(map(_count, agent.trainable_variables)):,} weights")
    check.notes += learning_notes.costly_updates(params, agent)
    for name, kind, of in (
        ("train_observers_ctor", "observer", "a Trajectory"),
        ("eval_observers_ctor", "observer", "a Trajectory"),
        ("callbacks_ctor", "callback", "what is logged"),
    ):
        check.errors += _check_observers(name, getattr(params, name), kind, of)
    return agent


def _try_update(params: TrainParamsBase, agent: tf_agent.TFAgent, check: Check) -> None:
    try:
        check_agent(params, agent)
    except UserError as error:
        check.errors += error.findings
    except (Exception, SystemExit) as error:
        check.errors.append(f"an update of the agent raised {describe_error(error)}: correct agent_ctor")


def _try_saving(params: TrainParamsBase, agent: tf_agent.TFAgent, action_spec: Any, check: Check) -> None:
    """Writes the SavedModels of a start into a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="sac_check_") as folder:
        spec = tf.nest.map_structure(tensor_spec.from_spec, action_spec)
        try:
            PolicyExport(
                RunPaths(Path(folder)), agent, spec, agent.train_step_counter, params.frame_stack
            ).save_models()
        except (OSError, tf.errors.ResourceExhaustedError):
            return  # A full disk says nothing of the agent.
        except (Exception, SystemExit) as error:
            check.errors.append(
                f"the agent's policies can't be saved as SavedModels ({describe_error(error)}): correct "
                "agent_ctor, actor_ctor or preprocessing_combiner"
            )


def _check_observers(name: str, hook: Callable[[], Any], kind: str, of: str) -> list[str]:
    try:
        observers = hook()
    except (Exception, SystemExit) as error:
        return [f"{name} raised {describe_error(error)}: correct the hook, or remove it"]
    if not isinstance(observers, tuple | list):
        return [f"{name} must return a list or tuple of {kind}s, found {shown(observers)}: () is none"]
    return [
        f"{name}: each {kind} must be callable with {of}, found {shown(observer)}"
        for observer in observers
        if not callable(observer)
    ]


def _sizes_of(agent: Any) -> tuple[int, int]:
    """(bytes of the agent's variables with Adam's two moments, bytes of the policy's)."""
    if agent is None:
        return 0, 0
    own = sum(_count(variable) * variable.dtype.size for variable in agent.variables)
    moments = 2 * sum(_count(variable) * variable.dtype.size for variable in agent.trainable_variables)
    policy = sum(_count(variable) * variable.dtype.size for variable in agent.policy.variables())
    return own + moments, policy


def _count(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64))


@contextlib.contextmanager
def _told(findings: list[str], what: str) -> Iterator[None]:
    """Turns an exception of the user's code into a finding."""
    try:
        yield
    except UserError as error:
        findings += [f"{what}: {finding}" for finding in error.findings]
    except EnvironmentFault as fault:
        where = f"step {fault.step}" if fault.step else "its first reset"
        findings.append(f"{what} failed in {where}: {describe_error(fault.__cause__ or fault)}")
    except (Exception, SystemExit) as error:
        findings.append(f"{what}: env_ctor or one of its hooks raised {describe_error(error)}")


def _try_value(env: TrainingEnvironment, name: str, value: Any) -> list[str]:
    """Sets a parameter and takes a few steps with it; what is wrong."""
    try:
        env.set_state({name: value})
    except UserError as error:
        return [f"curriculum.{name}: {finding}" for finding in error.findings]
    except (Exception, SystemExit) as error:
        return [
            f"curriculum.{name}: set_state({{{name!r}: {value}}}) of the environment raised {describe_error(error)}"
        ]
    findings: list[str] = []
    with _told(findings, f"the environment with {name} = {value}"):
        _take_steps(env, 0, _FEW_STEPS)
    return findings


def _name_of(env: Any) -> str:
    """Of the innermost environment's class, or of the process in which it runs."""
    return repr(env) if isinstance(env, EnvProcess) else type(list(gym_layers(env))[-1]).__name__


def _resident_bytes() -> int:
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # It has just ended.
            total += process.memory_info().rss
    return total


def _random_action(env: TrainingEnvironment, rng: np.random.Generator) -> Any:
    return tree.map_structure(lambda spec: rng.uniform(-1.0, 1.0, spec.shape), env.action_spec())


def _take_steps(env: TrainingEnvironment, seed: int, steps: int) -> list[Any]:
    """Time steps of the first episode, at most as many; the actions are those of `_run_episode`."""
    rng = np.random.default_rng(seed)
    time_steps = [env.reset()]
    while len(time_steps) <= steps and time_steps[-1].step_type != ts.StepType.LAST:
        time_steps.append(env.step(_random_action(env, rng)))
    return time_steps


def _same(ours: ts.TimeStep, theirs: ts.TimeStep) -> bool:
    pairs = zip(
        tree.flatten((ours.observation, ours.reward)), tree.flatten((theirs.observation, theirs.reward)), strict=True
    )
    return all(np.array_equal(a, b) for a, b in pairs)


def _are_alike(params: TrainParamsBase) -> bool:
    """Whether evaluation environments are built as those for collecting: by the same hooks, with the same arguments."""
    return not {"collect_env_args_kwargs", "eval_env_args_kwargs"} & _overridden(params)


def _end_in_words(last: ts.TimeStep, steps: int, horizon: int) -> str:
    if last.step_type != ts.StepType.LAST:
        return f"no end within {steps} steps ({_EPISODE_SECS:g} s); horizon={horizon} ends it at the latest"
    if last.discount == 0.0:
        return f"terminates, with random actions after {steps} steps"
    limit = "time limit of its own" if steps < horizon else f"time limit (horizon={horizon})"
    return f"ends by a {limit} after {steps} steps"


def _check_sequences(params: TrainParamsBase, last: ts.TimeStep, steps: int) -> list[str]:
    length = sequence_length(params)
    is_masked = "agent_ctor" not in _overridden(params)  # The toolkit's own agents learn from shorter episodes, too.
    if length is None or is_masked or last.step_type != ts.StepType.LAST or steps >= length:
        return []
    before = f" + recurrent_burn_in={params.recurrent_burn_in}" if params.recurrent_burn_in else ""
    return [
        f"with random actions an episode ends after {steps} steps, and those shorter than "
        f"recurrent_sequence_length={params.recurrent_sequence_length}{before} are never trained on by the "
        "agent of agent_ctor, which can't leave out steps: lower it, if many are so short"
    ]


def _check_action_count(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    """The default networks have one action; hooks of the user's own may do with more."""
    names = [spec.name for spec in tree.flatten(env.action_spec())]
    own = {"agent_ctor", "actor_ctor"} & _overridden(params)
    if len(names) == 1 or own:
        return []
    return [
        f"the action space has {len(names)} parts ({', '.join(names)}), the default networks take one: "
        "join them in one Box, or override actor_ctor and critic_ctor"
    ]


def _check_frame_stack(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    if params.frame_stack == 1 or has_images(env.observation_spec()):
        return []
    return [
        f"TrainParams.frame_stack={params.frame_stack} stacks images, but the observations hold none "
        f"(uint8 of shape [height, width, channels]), they are {_in_words(env.observation_spec())}: set it to 1"
    ]


def _without_effect_here(params: TrainParamsBase, env: TrainingEnvironment) -> list[str]:
    """Attributes that act on images alone, where there are none; what follows from the params has been told."""
    told = without_effect(params)
    return [note for note in without_effect(params, has_images(env.observation_spec())) if note not in told]


def _check_images(params: TrainParamsBase, env: TrainingEnvironment, check: Check) -> None:
    """Tells what becomes of each image, and of what may be meant as one; of networks of the user's own nothing."""
    filters = params.image_encoder_filters
    is_own = has_own_networks(params) or "agent_ctor" in _overridden(params)
    needs_axes = params.frame_stack > 1 or bool(params.image_augmentation_pixels)
    way_out = "" if needs_axes else ", or set image_encoder_filters=() to have it flattened"
    for spec in filter(_may_be_image, tree.flatten(env.observation_spec())):
        shape = tuple(spec.shape)
        is_asked = needs_axes or bool(filters and not is_own)
        if is_asked and is_image(spec) and not is_encoded(spec, filters) and _has_channels_first(shape):
            check.errors.append(
                f"images are [height, width, channels], and {spec.name} {shape} has its channels first: transpose it "
                f"in env_ctor, observation and space, as by np.transpose(image, (1, 2, 0)){way_out}"
            )
        elif is_own:
            continue
        elif not is_image(spec):
            check.notes.append(
                f"{spec.name} {shape} {np.dtype(spec.dtype)} is flattened, images are uint8 of shape "
                "[height, width, channels], from 0 to 255: convert it in env_ctor, if it is meant as one"
            )
        else:
            check.facts.append(f"{spec.name} is {_use_in_words(spec, filters)}")


def _use_in_words(image: Any, filters: Sequence[int]) -> str:
    if is_encoded(image, filters):
        return "encoded"
    if not filters:
        return "flattened: image_encoder_filters=()"
    side = smallest_side(filters)
    return f"flattened: smaller than {side} x {side} pixels"


def _may_be_image(spec: Any) -> bool:
    return len(spec.shape) > 2 or (len(spec.shape) == 2 and np.dtype(spec.dtype) == np.uint8)


def _has_channels_first(shape: tuple[int, ...]) -> bool:
    return shape[0] in _CHANNELS and min(shape[1:]) > max(_CHANNELS)


def _overridden(params: TrainParamsBase) -> set[str]:
    return {
        name
        for name in dir(TrainParamsBase)
        if getattr(type(params), name) is not getattr(TrainParamsBase, name) or name in vars(params)
    }


def _check_same_specs(collect_env: TrainingEnvironment, eval_env: TrainingEnvironment) -> list[str]:
    findings = []
    for what, ours, theirs in (
        ("observations", collect_env.observation_spec(), eval_env.observation_spec()),
        ("actions", collect_env.environment_action_spec, eval_env.environment_action_spec),
    ):
        try:
            same = bool(tree.flatten_with_path(ours) == tree.flatten_with_path(theirs))
        except ValueError:
            same = False
        if not same:
            findings.append(
                f"the {what} of the collect and the evaluation environment differ: "
                f"{_in_words(ours)} and {_in_words(theirs)}: build both with the same spaces"
            )
    return findings


def _in_words(nest: Any) -> str:
    return ", ".join(f"{spec.name} {tuple(spec.shape)} {np.dtype(spec.dtype)}" for spec in tree.flatten(nest))


def _bounds_in_words(nest: Any) -> str:
    def words(spec: Any) -> str:
        return f"{tuple(spec.shape)} in [{np.min(spec.minimum):g}, {np.max(spec.maximum):g}]"

    return ", ".join(words(spec) for spec in tree.flatten(nest))
