"""The trial of a user's environment and agent: build, reset, step an episode, evaluate, update, save, render."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.agents import tf_agent
from tf_agents.environments import py_environment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.agent import make_agent
from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.agents.block_update import check_agent
from tfagents_system.checks.findings import Findings
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.envs import actions, loading, rendering
from tfagents_system.envs.backends import is_batched
from tfagents_system.envs.batched_environment import BatchedEnvironment
from tfagents_system.envs.contract import CONTRACT, check_contract
from tfagents_system.envs.devices import Device
from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.envs.faults import EnvironmentFault, describe_error
from tfagents_system.envs.layers import gym_layers
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError, shown
from tfagents_system.launch import costs, spec_checks
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.data_checks import told
from tfagents_system.launch.spec_checks import ENVIRONMENT, take_steps, trial_action
from tfagents_system.machine.processes import tree_resident_bytes
from tfagents_system.policies.network_check import inference_findings
from tfagents_system.run_files.kept_checkpoints import AgentSignature
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase, overrides_any
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.trainer_checkpoints import signature_of
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.run_layout import run_layout
from tfagents_system.worker.recording import takers_of
from tfagents_system.workers import several_devices, several_vectors

EPISODE, SEEDING, EVALUATION = "episode", "seeding", "evaluation"
AGENT, RENDERING, DURATION = "agent", "rendering", "duration"
_HOOKS = {
    "train_observers_ctor": "a Trajectory",
    "eval_observers_ctor": "a Trajectory",
    "callbacks_ctor": "what is logged",
}
_LANES_NEED_SINGLE = {
    "greedy_episode_share": "whose lanes have one inference",
    "keep_best_episodes": "whose lanes can't be seeded one by one, so that no episode could be repeated",
}
EPISODE_SECS = 1.0  # Of stepping: a fast simulator's episode ends earlier, and for a slow one this is enough.
_MEASURING_SECS = 1.0
_COMPARED_STEPS = 20
_CHEAP_SECS = 0.5  # An environment that takes longer to build is not built again to compare its seeds.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the trial learned about the environment and the agent.

    Attributes:
      specs: The observation spec, the environment's own action spec and the action table, as `save_specs` takes them.
      layout: Of the experience.
      resident_bytes: Memory of this process with environments and agent, and of the processes that they started.
      agent: None if it could not be built.
      signature: What to compare with a checkpoint's, of before the first update.
      agent_bytes, policy_bytes: Of the agent's variables with Adam's two moments, and of the policy's.
    """

    specs: tuple[Any, Any, Any]
    layout: Layout
    resident_bytes: int
    agent: Any
    signature: AgentSignature | None
    agent_bytes: int
    policy_bytes: int


@dataclasses.dataclass
class EnvironmentTrial:
    """Builds worker 0's environments and the agent, and tries everything that a run will need of them.

    Args:
      params: The user's. With an impossible horizon, action_history or algorithm, which others report, nothing is
        tried.
      enter: Called with a description before each call of the user's code that may take long or hang.
      render: A picture is drawn, too, and policies of the toolkit's own networks are saved: it takes seconds.
      plan: Measures updates and steps on its CPUs, and reports how long the run takes; this takes seconds.
      envs_per_worker, deterministic: SAC_ENVS_PER_WORKER and SAC_DETERMINISTIC.
      has_workers: The start has workers of any kind here; without them a device is built for its specs and not stepped.
    """

    params: TrainParamsBase
    seed: int
    findings: Findings
    enter: Callable[[str], None] = lambda doing: None
    render: bool = False
    plan: CpuPlan | None = None
    envs_per_worker: int = 1
    deterministic: bool = False
    has_workers: bool = True

    def __post_init__(self) -> None:
        self._errors_before = len(self.findings.errors)
        self._build_secs = self._step_secs = 0.0
        self._episode_steps: int | None = None  # Of the episode with random actions, if it has ended.

    @property
    def _is_fine(self) -> bool:
        """Nothing is wrong with the environment; params may be."""
        return len(self.findings.errors) == self._errors_before

    def run(self) -> Outcome | None:
        """Makes the trial; None if the environment could not be built."""
        params = self.params
        if not (
            is_kept(integer_from(1), params.env_config.get("horizon"))
            and is_kept(integer_from(0), params.action_history)
            and params.algorithm in ALGORITHMS
        ):
            return None
        if self.render:
            rendering.prepare_headless()  # Before the user's code imports MuJoCo.
        with contextlib.ExitStack() as stack:
            if (env := self._build(stack)) is None:
                return None
            is_driven = self.has_workers or env.device is None
            if env.device is not None:
                self._check_device(env.device, is_driven)
            if not self._check_specs(env):
                return None
            if is_driven:
                self._try_steps(stack, env)
            agent = None
            if not self.findings.errors:  # In the params, too: networks are built from them.
                self.enter("building the agent")
                agent = self._build_agent(env)
            resident_bytes = tree_resident_bytes(os.getpid())
            signature = None if agent is None else signature_of(agent)  # Updates may make variables.
            sizes = (0, 0) if agent is None else _sizes(agent)
            if agent is not None:
                self._try_agent(agent, env)
            if self._is_fine and is_driven:
                if self.plan is not None and agent is not None:
                    self._foretell(self.plan, agent, env)
                if self.render:
                    self.enter(RENDERING)
                    self._draw(env)
            self.enter("closing the environments")
            with told(self.findings, ENVIRONMENT, "closing the environments"):
                stack.close()
            specs = env.observation_spec(), env.environment_action_spec, params.action_table
            layout = run_layout(params, env.observation_spec(), env.action_spec())
        return Outcome(specs, layout, resident_bytes, agent, signature, *sizes)

    # The environment.

    def _build(self, stack: contextlib.ExitStack) -> TrainingEnvironment | None:
        self.enter("building the collect environment")
        began = time.perf_counter()
        with told(self.findings, ENVIRONMENT, "the collect environment"):
            env = stack.enter_context(loading.make_collect_env(self.params, 0, self.seed))
            self._build_secs, user_env = time.perf_counter() - began, env.user_env
            name = repr(user_env) if isinstance(user_env, EnvProcess) else type([*gym_layers(user_env)][-1]).__name__
            observations, leaves = spec_checks.in_words(env.observation_spec()), tree.flatten(env.actions)
            facts = [f"observations {observations}", f"actions {', '.join(map(actions.in_words, leaves))}"]
            self.findings.fact(ENVIRONMENT, f"{name}, built in {self._build_secs:.2g} s", *facts)
            return env
        return None

    def _check_specs(self, env: TrainingEnvironment) -> bool:
        """Whether the trial can go on: wrong values of the params, which others report, may end it."""
        faults = Findings()
        with told(faults, ENVIRONMENT, "the collect environment"):
            spec_checks.check_specs(self.params, env, self.findings)
        if not self.findings.errors:
            self.findings.extend(faults)
        return not faults.errors

    def _check_device(self, device: Device, is_driven: bool) -> None:
        """What a run can't do with an environment that acts in real time; `is_driven`: the trial steps it."""
        tried = "tried with its default action" if is_driven else "not stepped, as this start has no workers"
        self.findings.fact(ENVIRONMENT, f"acts in real time: {tried}; each worker builds it once")
        errors = [several_devices(self.envs_per_worker)] if self.envs_per_worker > 1 else []
        if self.deterministic and device.has_real_clock:
            errors.append(
                "SAC_DETERMINISTIC=1 repeats every step, and the environment acts in real time by a real clock: use "
                "SAC_DETERMINISTIC=0, or give RealTimeEnvironment a clock=VirtualClock() where the device is a "
                "simulation"
            )
        errors += self._half_episode_findings("an environment that acts in real time")
        self.findings.error(ENVIRONMENT, *errors)
        if self.params.action_history == 0:
            self.findings.note(
                ENVIRONMENT,
                "action_history=0 in real time: the policy does not see the action that still acts while it computes "
                "the next one: set it to 1, or to 1 and the device's delay in time steps",
            )

    def _half_episode_findings(self, what: str) -> list[str]:
        if not self.deterministic or self.params.env_steps_per_iter is None:
            return []
        return [
            f"SAC_DETERMINISTIC=1 repeats the episodes under way after a restart, which {what} can't: set "
            "num_train_episodes_per_iter instead of env_steps_per_iter"
        ]

    def _check_lanes(self, env: TrainingEnvironment) -> None:
        """Steps all lanes of a vector environment until an episode has ended and another one begun."""
        params = self.params
        lanes = BatchedEnvironment(
            env.user_env,
            params.horizon,
            action_history=params.action_history,
            action_table=params.action_table,
            strict_observation_bounds=params.strict_observation_bounds,
        )
        count = lanes.num_lanes
        errors = [several_vectors(self.envs_per_worker, count)] if self.envs_per_worker > 1 else []
        if self.deterministic and not lanes.can_reseed:
            errors.append(
                "SAC_DETERMINISTIC=1 seeds the environment anew for each iteration, and EnvPool takes a seed only when "
                "it is built: use SAC_DETERMINISTIC=0, or gymnasium.make_vec"
            )
        errors += self._half_episode_findings("lanes of a vector environment")
        errors += [
            f"TrainParams.{name}={shown(getattr(params, name))} does not work with a vector environment, {why}: set it "
            f"to {getattr(TrainParamsBase, name)!r}, or return single environments and set SAC_ENVS_PER_WORKER={count}"
            for name, why in _LANES_NEED_SINGLE.items()
            if getattr(params, name)
        ]
        self.findings.error(CONTRACT, *errors)
        end = _step_lanes(lanes)
        if not env.outside:
            self._note_outside(lanes)
        self.findings.fact(CONTRACT, f"{count} lanes" + (f", the first episode ends after {end} steps" if end else ""))

    def _try_steps(self, stack: contextlib.ExitStack, env: TrainingEnvironment) -> None:
        """All that needs an episode."""
        params, findings = self.params, self.findings
        first_steps = self._try_episode(env)
        self._note_outside(env)
        if self.envs_per_worker > 1 and env.device is None and not is_batched(env.user_env):
            several = f"SAC_ENVS_PER_WORKER={self.envs_per_worker} environments of a worker"
            findings.error(ENVIRONMENT, *self._half_episode_findings(several))
        if self._is_fine and is_batched(env.user_env):
            self.enter("reset() or step() of all lanes of the collect environment")
            with told(findings, CONTRACT, "the collect environment"):
                self._check_lanes(env)
        eval_env = self._try_evaluation(stack, env) if params.num_eval_episodes else None
        if self._is_fine:
            self.enter("compute_reward of the collect environment")
            with told(findings, ENVIRONMENT, "compute_reward of the collect environment"):
                spec_checks.check_goal_functions(params, env, first_steps, findings)
            if env.device is None:
                self._compare_seeds(first_steps)
            spec_checks.check_values(params, env, eval_env, findings, self.enter)
            _rest(env)

    def _note_outside(self, env: TrainingEnvironment | BatchedEnvironment) -> None:
        if first := env.outside:
            self.findings.note(CONTRACT, f"{first}. It is kept; strict_observation_bounds = True makes it a fault")

    def _try_episode(self, env: TrainingEnvironment) -> list[ts.TimeStep]:
        """An episode with random actions, as a worker runs it; returns its first time steps."""
        episode, contract = Findings(), Findings()
        first_steps: list[ts.TimeStep] = []
        with told(episode, EPISODE, "the collect environment"):
            self._run_episode(env, first_steps, episode)
        self.enter("reset() and step() of the collect environment")
        # What the environment itself returns explains best why the conversion fails.
        with contextlib.suppress(Exception):
            # TF-Agents' wrappers forward `action_space` to the gym environment inside, but return time steps.
            has_other_contract = isinstance(env.user_env, py_environment.PyEnvironment | EnvProcess)
            if not has_other_contract and not is_batched(env.user_env):
                check_contract(env.user_env, contract, _user_action(env))
        _rest(env)
        if not contract.errors:
            self.findings.extend(episode)
        self.findings.extend(contract)
        return first_steps

    def _run_episode(self, env: TrainingEnvironment, first_steps: list[ts.TimeStep], findings: Findings) -> None:
        rng = np.random.default_rng(self.seed)
        self.enter("reset() of the collect environment")
        time_step = env.reset()
        first_steps.append(time_step)
        self.enter("step() of the collect environment")
        began, steps = time.perf_counter(), 0
        while time_step.step_type != ts.StepType.LAST and time.perf_counter() - began < EPISODE_SECS:
            time_step = env.step(trial_action(env, rng))
            steps += 1
            if len(first_steps) <= _COMPARED_STEPS:
                first_steps.append(time_step)
        secs = max(1e-9, time.perf_counter() - began)
        self._step_secs = secs / max(1, steps)
        horizon, has_ended = self.params.horizon, time_step.step_type == ts.StepType.LAST
        self._episode_steps = steps if has_ended else None
        taken = "random actions" if env.device is None else "its default action"
        if not has_ended:
            end = f"no end within {steps} steps ({EPISODE_SECS:g} s); horizon={horizon} ends it at the latest"
        elif time_step.discount == 0.0:
            end = f"terminates, with {taken} after {steps} steps"
        else:
            limit = "time limit of its own" if steps < horizon else f"time limit (horizon={horizon})"
            end = f"ends by a {limit} after {steps} steps"
        findings.fact(EPISODE, end, f"{steps / secs:,.0f} steps/s")

    def _try_evaluation(self, stack: contextlib.ExitStack, env: TrainingEnvironment) -> TrainingEnvironment | None:
        """The environment that evaluates; None if it is the one that collects, or could not be built."""
        if env.device is not None:
            self.findings.fact(EVALUATION, "in the environment that collects: it acts in real time, so there is one")
            return None
        was_fine = self._is_fine
        self.enter("building the evaluation environment")
        with told(self.findings, EVALUATION, "the evaluation environment"):
            eval_env = stack.enter_context(loading.make_eval_env(self.params, 0, env, self.seed))
            differences = spec_checks.check_same_specs(env, eval_env)
            self.findings.error(EVALUATION, *differences)
            if was_fine and not differences:  # Else most likely the same again.
                self.enter("reset() or step() of the evaluation environment")
                take_steps(eval_env, self.seed, _COMPARED_STEPS)
                self.findings.fact(EVALUATION, "the same observations and actions as for collecting")
            return eval_env
        return None

    def _compare_seeds(self, first_steps: list[ts.TimeStep]) -> None:
        """Whether the same seed gives the same episode twice."""
        if self._build_secs > _CHEAP_SECS:
            self.findings.fact(SEEDING, "not looked at: building another environment takes too long")
            return
        self.enter("building the collect environment again")
        with contextlib.ExitStack() as stack, told(self.findings, SEEDING, "a second collect environment"):
            other = stack.enter_context(loading.make_collect_env(self.params, 0, self.seed))
            step = spec_checks.first_difference(first_steps, take_steps(other, self.seed, _COMPARED_STEPS))
            if step is None:
                self.findings.fact(SEEDING, "the same seed gives the same episode")
                return
            where = f"in step {step}" if step else "in the first observation"
            self.findings.note(
                SEEDING,
                f"two environments with the same seed differ {where}: a run can't be repeated exactly. Draw random "
                "numbers from self.np_random or from a generator seeded by reset(seed=...) or by env_ctor's seed",
            )

    # The agent.

    def _build_agent(self, env: TrainingEnvironment) -> Any:
        """Calls the user's other hooks: a mistake in them would end every role repeatedly."""
        for name, argument in _HOOKS.items():
            with told(self.findings, AGENT, name, names_it=False):
                returned = getattr(self.params, name)()
                if not isinstance(returned, tuple | list):
                    raise UserError(f"{name} must return a list or tuple, found {shown(returned)}: () is none")
                for item in returned:
                    if not (callable(item) or (name != "callbacks_ctor" and takers_of([item]))):
                        raise UserError(f"{name}: each of them must be callable with {argument}, found {shown(item)}")
        agent = None
        with told(self.findings, AGENT, "agent_ctor, actor_ctor or critic_ctor", names_it=False):
            agent = make_agent_for(self.params, env)
            weights = sum(map(_count, agent.trainable_variables))
            self.findings.fact(AGENT, f"{type(agent).__name__}, {weights:,} weights")
        if agent is not None:
            with told(self.findings, AGENT, "an action of the agent's policy", names_it=False):
                faults = inference_findings(agent, self.params.frame_stack, deterministic=self.deterministic)
                self.findings.error(AGENT, *faults)
        return agent

    def _try_agent(self, agent: Any, env: TrainingEnvironment) -> None:
        """An update, and the SavedModel of a start, written to a temporary folder."""
        errors = len(self.findings.errors)
        self.enter("trying an update of the agent")
        with told(self.findings, AGENT, "an update of the agent", names_it=False):
            check_agent(self.params, agent)
        # The toolkit's own networks can be saved: no start waits for that.
        is_own = (
            overrides_any(self.params, "agent_ctor", "actor_ctor") or self.params.preprocessing_combiner is not None
        )
        if len(self.findings.errors) > errors or not (self.render or is_own):
            return
        self.enter("saving the agent's policies")
        with (
            tempfile.TemporaryDirectory(prefix="sac_check_") as folder,
            told(self.findings, AGENT, "saving the agent's policy as a SavedModel"),
            contextlib.suppress(OSError, tf.errors.ResourceExhaustedError),  # A full disk says nothing of the agent.
        ):
            paths, train_step = RunPaths(Path(folder)), agent.train_step_counter
            PolicyExport(paths, agent, env.actions, train_step, self.params.frame_stack).save_model()

    def _foretell(self, plan: CpuPlan, agent: Any, env: TrainingEnvironment) -> None:
        """Measures updates and steps, and reports how long the run takes."""
        params, cpus = self.params, plan.shared_cpus
        # The plan has experts, too, but not the workers that join from elsewhere; a run has one or the other.
        workers = max(params.compute_config.get("num_collect_workers", 0), len(plan.workers) - plan.evaluators)
        length = None
        # A device has a pace of its own, and is not driven by a policy without training.
        step = costs.Cost(self._step_secs, self._step_secs if env.device is None else 0.0)
        with told(self.findings, DURATION, "measuring"):
            self.enter("measuring steps with the agent's policy")
            with costs.on_cpus(plan.workers[0]), contextlib.suppress(EnvironmentFault):  # A run survives one.
                if env.device is None:
                    step, length = costs.time_steps(params, agent, [env], _MEASURING_SECS, self.seed)
            self.enter("measuring updates of the agent")
            with costs.on_cpus(plan.trainer):
                update = costs.time_updates(params, agent, _MEASURING_SECS, self.seed)
            measured = costs.Costs(update, step, length or self._episode_steps or params.horizon)
            duration = costs.foretell(
                params, measured, workers, cpus, takes_turns=self.deterministic, eval_workers=plan.evaluators
            )
            self.findings.fact(DURATION, *costs.duration_in_words(duration, measured, cpus))

    def _draw(self, env: TrainingEnvironment) -> None:
        """One picture, as run.py draws it: in another environment, unless there is but one device."""
        try:
            with contextlib.ExitStack() as stack:
                if env.device is None:
                    env = loading.make_play_env(self.params, self.seed, render=True)
                    stack.callback(env.close)
                rendering.enable_frames(env.user_env)
                env.reset()
                frame = env.render_frame()
                self.findings.fact(RENDERING, f"frames of {frame.shape[1]} x {frame.shape[0]}")
        except Exception as error:
            fault = error.findings[0] if isinstance(error, UserError) else describe_error(error)
            self.findings.note(RENDERING, f"{fault}; training needs no pictures")


def _step_lanes(lanes: BatchedEnvironment) -> int | None:
    """The step in which the first episode ended; None if none did in time."""
    rng = np.random.default_rng(0)
    columns = lanes.new_columns()
    lanes.reset(columns)
    until, steps, end = time.perf_counter() + EPISODE_SECS, 0, None
    while time.perf_counter() < until and (end is None or steps < end + 3):  # The next episode's first steps, too.
        specs = tree.flatten(lanes.action_spec())
        step = lanes.step([actions.random_actions(spec, rng, lanes.num_lanes) for spec in specs], columns)
        steps += 1
        if end is None and step.ended:
            end = steps
    return end


def make_agent_for(params: TrainParamsBase, env: TrainingEnvironment) -> tf_agent.TFAgent:
    """The agent of an environment.

    Raises:
      UserError: `agent_ctor` does not return one.
    """
    specs = tf.nest.map_structure(tensor_spec.from_spec, (env.observation_spec(), env.action_spec()))
    return make_agent(params, specs[0], specs[1], tf.Variable(0, dtype=tf.int64))


def _user_action(env: TrainingEnvironment) -> Callable[[], Any]:
    """Gives actions in the environment's own units."""
    if env.device is None:
        return lambda: env.user_env.action_space.sample()
    return lambda: env.in_environment_units(trial_action(env, np.random.default_rng(0)))


def _rest(env: TrainingEnvironment) -> None:
    """Nobody steps a device for a while."""
    if env.device is not None:
        with contextlib.suppress(Exception):
            env.device.wait()


def _sizes(agent: Any) -> tuple[int, int]:
    """(bytes of the agent's variables with Adam's two moments, bytes of the policy's)."""
    own, trainable, policy = (
        sum(_count(variable) * variable.dtype.size for variable in variables)
        for variables in (agent.variables, agent.trainable_variables, agent.policy.variables())
    )
    return own + 2 * trainable, policy


def _count(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64))
