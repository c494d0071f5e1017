"""Tries a user's environment before any process starts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tf_agents.environments import py_environment
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.checks.checklist import Check, Checklist
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.envs import loading, rendering
from tfagents_system.envs.backends import is_batched
from tfagents_system.envs.contract import check_contract
from tfagents_system.envs.devices import Device
from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.launch import costs
from tfagents_system.launch.agent_checks import build_agent, sizes_of, try_saving, try_update
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.curriculum_checks import check_values, told
from tfagents_system.launch.device_checks import check_device, check_evaluating_devices
from tfagents_system.launch.goal_checks import check_goal_functions, check_goal_spaces
from tfagents_system.launch.lane_checks import check_lanes
from tfagents_system.launch.random_steps import take_steps, trial_action, trial_action_of
from tfagents_system.launch.rendering_checks import check_rendering
from tfagents_system.launch.spec_checks import (
    EPISODE_SECS,
    OWN_NETWORKS,
    SPEC_CHECKS,
    actions_in_words,
    are_alike,
    check_images,
    check_same_specs,
    end_in_words,
    in_words,
    name_of,
    overridden,
    same_step,
    without_effect_here,
)
from tfagents_system.machine import memory
from tfagents_system.run_files.kept_checkpoints import AgentSignature
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.trainer_checkpoints import signature_of
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.run_layout import run_layout

ENVIRONMENT, CONTRACT, EPISODE = "environment", "reset and step", "episode"
SEEDING, EVALUATION, CURRICULUM = "seeding", "evaluation", "curriculum"
AGENT, RENDERING, DURATION = "agent", "rendering", "duration"

_MEASURING_SECS = 1.0
_COMPARED_STEPS = 20
_CHEAP_SECS = 0.5  # An environment that takes longer to build is not built again to compare its seeds.

Enter = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Trial:
    """What the checks learned about the environment and the agent.

    Attributes:
      specs: The observation spec, the environment's own action spec and the action table, as `save_specs` takes them.
      layout: Of the experience.
      resident_bytes: Memory of this process with environments and agent, and of the processes that they started.
      agent_bytes: Size of the agent's variables, with what its optimizers will add.
      policy_bytes: Size of the policy's variables.
      agent, signature: The agent, and what to compare with a checkpoint's; None if it could not be built.
    """

    specs: tuple[Any, Any, Any]
    layout: Layout
    resident_bytes: int
    agent_bytes: int
    policy_bytes: int
    signature: AgentSignature | None
    agent: Any


def check_environment(
    params: TrainParamsBase,
    seed: int,
    checks: Checklist,
    enter: Enter = lambda doing: None,
    *,
    render: bool = False,
    deterministic: bool = False,
    plan: CpuPlan | None = None,
    envs_per_worker: int = 1,
    has_evaluators: bool = False,
    has_workers: bool = True,
) -> Trial | None:
    """Builds worker 0's environments and the agent, and tries everything that a run will need of them.

    Args:
      params: The user's. With an impossible horizon, action_history or algorithm, which others report, nothing is
        tried.
      enter: Called with a description before each call of the user's code that may take long or hang.
      render: A picture is drawn, too, and policies of the toolkit's own networks are saved: it takes seconds.
      deterministic: SAC_DETERMINISTIC=1, which not every policy supports.
      plan: Measures updates and steps on its CPUs, and reports how long the run takes; this takes seconds.
      envs_per_worker: SAC_ENVS_PER_WORKER: not with a vector environment.
      has_evaluators: There are workers that only evaluate.
      has_workers: The start has workers of any kind here; without them a device is built for its specs and not stepped.

    Returns:
      None if the environment could not be built.
    """
    horizon, action_history = params.env_config.get("horizon"), params.action_history
    if (
        not is_kept(integer_from(1), horizon)
        or not is_kept(integer_from(0), action_history)
        or params.algorithm not in ALGORITHMS
    ):
        return None
    check = _Check(params, seed, checks, enter, envs_per_worker, has_workers)
    trial = check.run(render, deterministic, plan)
    if has_evaluators and check.device is not None:
        check_evaluating_devices(params, checks[ENVIRONMENT])
    return trial


class _Check:
    """One check of an environment; the steps of `run` in their order."""

    def __init__(
        self,
        params: TrainParamsBase,
        seed: int,
        checks: Checklist,
        enter: Enter,
        envs_per_worker: int,
        has_workers: bool,
    ) -> None:
        self._params = params
        self._seed = seed
        self._checks = checks
        self._enter = enter
        self._envs_per_worker = envs_per_worker
        self._is_driven = has_workers  # A device; without workers here it is one of other machines or other starts.
        self._build_secs = self._step_secs = 0.0
        self.device: Device | None = None
        self._eval_steps: list[Any] = []
        self._episode_steps: int | None = None  # Of the episode with random actions, if it has ended,

    @property
    def _is_fine(self) -> bool:
        own = (ENVIRONMENT, CONTRACT, EPISODE, SEEDING, EVALUATION, CURRICULUM, AGENT)
        return not any(self._checks[name].errors for name in own if name in self._checks)

    def run(self, render: bool, deterministic: bool, plan: CpuPlan | None) -> Trial | None:
        if render:
            rendering.prepare_headless()  # Before the user's code imports MuJoCo.
        agent = signature = None
        with contextlib.ExitStack() as stack:
            collect_env = self._build_collect_env(stack)
            if collect_env is None:
                return None
            observation_spec = collect_env.observation_spec()
            check = self._checks[ENVIRONMENT]
            check_device(self._params, collect_env, check, self._envs_per_worker, deterministic, self._is_driven)
            specs = observation_spec, collect_env.environment_action_spec, self._params.action_table
            layout = run_layout(self._params, observation_spec, collect_env.action_spec())
            eval_env = self._try_steps(stack, collect_env, deterministic) if self._is_driven else None
            if not self._checks.errors:  # In the params, too: networks are built from them.
                self._enter("building the agent")
                agent = build_agent(self._params, collect_env, self._checks[AGENT], deterministic=deterministic)
            resident = memory.tree_resident_bytes(os.getpid())
            if agent is not None:
                signature = signature_of(agent)  # Before an update of it, which may make variables.
                self._enter("trying an update of the agent")
                try_update(self._params, agent, self._checks[AGENT])
                is_own = bool(OWN_NETWORKS & overridden(self._params))
                # The toolkit's own can be saved: no start waits for that.
                if (render or is_own) and not self._checks[AGENT].errors:
                    self._enter("saving the agent's policies")
                    try_saving(self._params, agent, collect_env.actions, self._checks[AGENT])
            sizes = sizes_of(agent)  # Before updates, which make the optimizers' variables.
            if plan is not None and agent is not None and self._is_fine and self._is_driven:
                self._foretell(agent, collect_env, plan, deterministic)
            if render and self._is_fine and self._is_driven:
                self._enter(RENDERING)
                drawn = collect_env if self.device is not None else eval_env
                check_rendering(self._params, drawn, self._seed, self._checks[RENDERING])
            self._enter("closing the environments")
            with self._told(ENVIRONMENT, "closing the environments"):
                stack.close()
        return Trial(specs, layout, resident, *sizes, signature, agent)

    def _try_steps(self, stack: contextlib.ExitStack, collect_env: TrainingEnvironment, deterministic: bool) -> Any:
        """All that needs an episode; returns the environment that evaluates, None where nothing is evaluated."""
        first = self._try_episode(collect_env)
        self._try_lanes(collect_env, deterministic)
        eval_env = self._try_evaluation(stack, collect_env) if self._params.num_eval_episodes else None
        if self._is_fine:
            self._enter("compute_reward of the collect environment")
            with self._told(ENVIRONMENT, "compute_reward of the collect environment"):
                check_goal_functions(self._params, collect_env, first, self._checks[ENVIRONMENT])
            self._compare_seeds(first)
            other = None if self.device else eval_env
            check_values(self._params, collect_env, other, lambda: self._checks[CURRICULUM], self._enter)
            self._rest()
        return eval_env

    def _build_collect_env(self, stack: contextlib.ExitStack) -> TrainingEnvironment | None:
        self._enter("building the collect environment")
        check = self._checks[ENVIRONMENT]
        began = time.perf_counter()
        with self._told(ENVIRONMENT, "the collect environment"):
            env = stack.enter_context(loading.make_collect_env(self._params, 0, self._seed))
            self._build_secs, self.device = time.perf_counter() - began, env.device
            self._is_driven |= env.device is None
            check.facts.append(f"{name_of(env.user_env)}, built in {self._build_secs:.2g} s")
            check.facts.append(f"observations {in_words(env.observation_spec())}")
            check.facts.append(f"actions {actions_in_words(env.actions)}")
            for find in (*SPEC_CHECKS, check_goal_spaces):
                try:
                    check.errors += find(self._params, env)
                except Exception:
                    if not self._checks.errors:
                        raise
                    return None  # It follows from values of the params that are told to be wrong.
            if not self._checks.errors:  # Of the params either.
                check_images(self._params, env, check)
                check.notes += without_effect_here(self._params, env)
            return env
        return None

    def _try_episode(self, env: TrainingEnvironment) -> list[Any]:
        """An episode with random actions, as a worker runs it; returns its first time steps."""
        raw = Check(CONTRACT)
        first: list[Any] = []
        with self._told(EPISODE, "the collect environment"):
            first = self._run_episode(env)
        self._enter("reset() and step() of the collect environment")
        # What the environment itself returns explains best why the conversion fails.
        with contextlib.suppress(Exception):
            # TF-Agents' wrappers forward `action_space` to the gym environment inside, but return time steps.
            has_other_contract = isinstance(env.user_env, py_environment.PyEnvironment | EnvProcess)
            if not has_other_contract and not is_batched(env.user_env):
                check_contract(env.user_env, raw, trial_action_of(env))
        self._rest()
        if raw.errors:
            self._checks[EPISODE].errors.clear()
        self._checks[CONTRACT].facts += raw.facts
        self._checks[CONTRACT].errors += raw.errors
        return first

    def _try_lanes(self, env: TrainingEnvironment, deterministic: bool) -> None:
        if not self._is_fine:
            return
        self._enter("reset() or step() of all lanes of the collect environment")
        with self._told(CONTRACT, "the collect environment"):
            if is_batched(env.user_env):
                check_lanes(self._params, env, self._checks[CONTRACT], self._envs_per_worker, deterministic)

    def _run_episode(self, env: TrainingEnvironment) -> list[Any]:
        rng = np.random.default_rng(self._seed)
        self._enter("reset() of the collect environment")
        time_step = env.reset()
        first = [time_step]
        self._enter("step() of the collect environment")
        began, steps = time.perf_counter(), 0
        while time_step.step_type != ts.StepType.LAST and time.perf_counter() - began < EPISODE_SECS:
            time_step = env.step(trial_action(env, rng))
            steps += 1
            if len(first) <= _COMPARED_STEPS:
                first.append(time_step)
        secs = max(1e-9, time.perf_counter() - began)
        self._step_secs = secs / max(1, steps)
        check = self._checks[EPISODE]
        actions = "random actions" if self.device is None else "its default action"
        check.facts.append(end_in_words(time_step, steps, self._params.horizon, actions))
        check.facts.append(f"{steps / secs:,.0f} steps/s")
        if time_step.step_type == ts.StepType.LAST:
            self._episode_steps = steps
        return first

    def _try_evaluation(self, stack: contextlib.ExitStack, collect_env: TrainingEnvironment) -> Any:
        was_fine, check = self._is_fine, self._checks[EVALUATION]
        if self.device is not None:
            check.facts.append("in the environment that collects: it acts in real time, so there is one")
            return collect_env
        self._enter("building the evaluation environment")
        with self._told(EVALUATION, "the evaluation environment"):
            eval_env = stack.enter_context(loading.make_eval_env(self._params, 0, collect_env, self._seed))
            check.errors += check_same_specs(collect_env, eval_env)
            if was_fine and not check.errors:  # Else most likely the same again.
                self._enter("reset() or step() of the evaluation environment")
                self._eval_steps = take_steps(eval_env, self._seed, _COMPARED_STEPS)
                check.facts.append("the same observations and actions as for collecting")
            return eval_env
        return None

    def _compare_seeds(self, first: list[Any]) -> None:
        """Whether the same seed gives the same episode twice."""
        if self.device is not None:
            return
        again = self._eval_steps
        if not again or not are_alike(self._params):
            if self._build_secs > _CHEAP_SECS:
                self._checks[SEEDING].facts.append("not looked at: building another environment takes too long")
                return
            self._enter("building the collect environment again")
            with contextlib.ExitStack() as stack, self._told(SEEDING, "a second collect environment"):
                other = stack.enter_context(loading.make_collect_env(self._params, 0, self._seed))
                again = take_steps(other, self._seed, _COMPARED_STEPS)
        differs = next((k for k, pair in enumerate(zip(first, again, strict=False)) if not same_step(*pair)), None)
        if differs is None:
            self._checks[SEEDING].facts.append("the same seed gives the same episode")
            return
        where = f"in step {differs}" if differs else "in the first observation"
        self._checks[SEEDING].notes.append(
            f"two environments with the same seed differ {where}: a run can't be repeated exactly. Draw random numbers "
            "from self.np_random or from a generator seeded by reset(seed=...) or by env_ctor's seed"
        )

    def _foretell(self, agent: Any, env: TrainingEnvironment, plan: CpuPlan, deterministic: bool) -> None:
        """Measures updates and steps, and reports how long the run takes."""
        params, cpus = self._params, plan.shared_cpus
        # The plan has experts, too, but not the workers that join from elsewhere; a run has one or the other.
        workers = max(params.compute_config.get("num_collect_workers", 0), len(plan.workers) - plan.evaluators)
        with self._told(DURATION, "measuring"):
            self._enter("measuring steps with the agent's policy")
            with costs.on_cpus(plan.workers[0]):
                if self.device is None:
                    step, length = costs.Cost(self._step_secs, self._step_secs), None
                    with contextlib.suppress(EnvironmentFault):  # A run survives one.
                        step, length = costs.time_steps(params, agent, [env], _MEASURING_SECS, self._seed)
                else:  # It has a pace of its own, and is not driven by a policy without training.
                    step, length = costs.Cost(self._step_secs, 0.0), None
            self._enter("measuring updates of the agent")
            with costs.on_cpus(plan.trainer):
                update = costs.time_updates(params, agent, _MEASURING_SECS, self._seed)
            measured = costs.Costs(update, step, length or self._episode_steps or params.horizon)
            duration = costs.foretell(
                params, measured, workers, cpus, takes_turns=deterministic, eval_workers=plan.evaluators
            )
            facts, notes = costs.in_words(duration, measured, cpus)
            self._checks[DURATION].facts += facts
            self._checks[DURATION].notes += notes

    def _rest(self) -> None:
        """Nobody steps a device for a while."""
        if self.device is not None:
            with contextlib.suppress(Exception):
                self.device.wait()

    @contextlib.contextmanager
    def _told(self, name: str, what: str) -> Iterator[None]:
        with told(self._checks[name].errors, what):
            yield
