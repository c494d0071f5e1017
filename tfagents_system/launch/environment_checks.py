"""The trial of a user's environment and agent: build, reset, step an episode, evaluate, update, save, render."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree
from tf_agents.environments import py_environment
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.agent import make_agent
from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.agents.block_update import check_agent
from tfagents_system.checks.findings import Findings
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.envs import actions, gym_driver, kinds, loading, rendering
from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.envs.faults import EnvironmentDiedError, EnvironmentFault
from tfagents_system.envs.gym_driver import ACTION_MASK, gym_layers, name_of
from tfagents_system.envs.hooks import COLLECT, EVAL
from tfagents_system.envs.observations import CONTRACT, check_contract
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError, shown
from tfagents_system.launch import costs, machine_checks, neighbours, spec_checks
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.neighbours import OtherProcess, first_difference, works
from tfagents_system.launch.spec_checks import ENVIRONMENT, in_words, specs_of
from tfagents_system.launch.trial import told
from tfagents_system.machine import process_settings
from tfagents_system.machine.processes import tree_resident_bytes
from tfagents_system.playing import export_files
from tfagents_system.policies.tensorflow_policy import of_single_frames
from tfagents_system.policies.worker_policy import LaneSteps, WorkerPolicy, make_worker_policy
from tfagents_system.run_files.kept_checkpoints import AgentSignature
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.params_check import has_horizon
from tfagents_system.train_params_base import TrainParamsBase, overrides_any
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.trainer_checkpoints import signature_of
from tfagents_system.transport.segments import Layout, run_layout
from tfagents_system.worker.actors import RandomActor
from tfagents_system.worker.recording import takers_of
from tfagents_system.workers import several_devices, several_vectors

CURRICULUM = "curriculum"
EPISODE, SEEDING, EVALUATION = "episode", "seeding", "evaluation"
AGENT, RENDERING, DURATION = "agent", "rendering", "duration"
_COLLECT, _EVAL = "the collect environment", "the evaluation environment"
_HOOKS = ("train_observers_ctor", "eval_observers_ctor", "callbacks_ctor")
_EPISODE_SECS = 1.0  # Of stepping: a fast simulator's episode ends earlier, and for a slow one this is enough.
_MEASURING_SECS = 1.0
_COMPARED_STEPS = 20
_DISTURBED_SECS = 0.2  # Of stepping, in an episode that may be disturbed.
_CHEAP_SECS = 0.5  # An environment that takes longer to build is not built again to compare its seeds.
_COSTLY = {  # Wrappers.
    "RecordVideo": "films episodes in each worker: remove it, `sac play` and the end of a run film policies",
    **dict.fromkeys(
        ("FrameStack", "FrameStackObservation"), "stores frames several times: set TrainParams.frame_stack"
    ),
}
_STEPS_WITH_VALUE = 5
_LANES = 4  # In which actions are compared.
_SEEDED = "Draw random numbers from self.np_random or from a generator seeded by reset(seed=...) or by env_ctor's seed"
_UNSEEDED = "reset() takes no seed: write reset(self, seed=None, options=None), and seed a generator of its own by it"
_OF_ITS_OWN = (
    "give each its own port, file or device, by the `id` of collect_env_args_kwargs and eval_env_args_kwargs, which is "
    "another one in each worker, but the same in both hooks; or have a single one (SAC_NUM_COLLECT_WORKERS=1 and "
    "num_eval_episodes=0)"
)


class Outcome(NamedTuple):
    """What the trial learned about the environment and the agent.

    Attributes:
      name: Of the environment, such as Pendulum-v1.
      specs: The observation spec, the environment's own action spec and the action table, as `save_specs` takes them.
      layout: Of the experience.
      resident_bytes: Memory of this process with environments and agent, and of the processes that they started.
      agent: None if it could not be built.
      signature: What to compare with a checkpoint's, of before the first update.
      agent_bytes, policy_bytes: Of the agent's variables with Adam's two moments, and of the policy's.
    """

    name: str
    specs: tuple[Any, Any, Any]
    layout: Layout
    resident_bytes: int
    agent: Any
    signature: AgentSignature | None
    agent_bytes: int
    policy_bytes: int


class Neighbour(NamedTuple):
    """Another environment of the run; the first three as of `loading.make_env`."""

    kind: str
    seed: int
    env_id: int
    name: str


class Episode(NamedTuple):
    """An episode from its reset on, as far as it was played.

    Attributes:
      first: Its first time steps.
      last: The last one that was played.
      steps, step_secs: How many, and how long each took.
    """

    first: list[ts.TimeStep]
    last: ts.TimeStep
    steps: int
    step_secs: float

    @property
    def has_ended(self) -> bool:
        return bool(self.last.step_type == ts.StepType.LAST)


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
      workers: Of any kind, here; without them a device is built for its specs and not stepped.
      evaluates: Workers that collect evaluate, too, each in a second environment.
      has_trainer: The start has it here.
    """

    params: TrainParamsBase
    seed: int
    findings: Findings
    enter: Callable[[str], None] = lambda doing: None
    render: bool = False
    plan: CpuPlan | None = None
    envs_per_worker: int = 1
    deterministic: bool = False
    workers: int = 1
    evaluates: bool = True
    has_trainer: bool = True

    @property
    def _is_fine(self) -> bool:
        """Nothing is wrong with the environment; params may be."""
        return len(self.findings.errors) == self._errors_before

    @contextlib.contextmanager
    def _trying(self, where: str, doing: str, what: str | None = None, *, names_it: bool = True) -> Iterator[None]:
        """The user's code runs: an exception is an error about `what`, and a hang one about what it was doing."""
        self.enter(doing)
        with told(self.findings, where, what or doing, names_it=names_it):
            yield

    def run(self) -> Outcome | None:
        """Makes the trial; None if the environment could not be built."""
        params, self._errors_before = self.params, len(self.findings.errors)
        is_possible = is_kept(integer_from(0), params.action_history) and params.algorithm in ALGORITHMS
        if not (is_possible and has_horizon(params.env_config)):
            return None
        if self.render:
            rendering.prepare_headless()  # Before the user's code imports MuJoCo.
        with contextlib.ExitStack() as self._stack, OtherProcess(self._play_alone) as self._other:
            if (env := self._build()) is None or not self._check_specs(env):
                return None
            episode = self._try_steps(env) if self.workers or env.device is None else None
            if not self.findings.errors:
                self.findings.error(ENVIRONMENT, *process_settings.faults())
            agent = None if self.findings.errors else self._build_agent(env)  # Networks are built from the params, too.
            resident_bytes = tree_resident_bytes(os.getpid()) - tree_resident_bytes(self._other.pid)
            signature, sizes = None, (0, 0)
            if agent is not None:
                signature, sizes = signature_of(agent), _sizes(agent)  # Updates may make variables.
                self._try_agent(agent, env)
            if self._is_fine and episode is not None:
                if self.plan is not None and agent is not None:
                    self._foretell(self.plan, agent, env, episode)
                if self.render and env.device is not None:
                    self._draw(env)
                if self.workers > 1 and env.device is None and self._build_secs <= _CHEAP_SECS:
                    other = Neighbour(COLLECT, self.seed + 1, self.envs_per_worker, "the environment of another worker")
                    self._try_neighbour(env, episode, other, is_here=False)
            with self._trying(ENVIRONMENT, "closing the environments"):
                self._stack.close()
            if self._is_fine and episode is not None and env.device is None:  # There may be one environment at a time.
                self._compare_seeds(episode)
                if self.render:
                    self._draw(env)
            specs = env.observation_spec(), env.environment_action_spec, params.action_table
            layout = run_layout(params, env.observation_spec(), env.action_spec())
        return Outcome(self._name, specs, layout, resident_bytes, agent, signature, *sizes)

    # The environment.

    def _build(self) -> TrainingEnvironment | None:
        with self._trying(ENVIRONMENT, "building the collect environment", _COLLECT):
            began = time.perf_counter()
            env = self._stack.enter_context(loading.make_collect_env(self.params, 0, self.seed))
            self._build_secs, user_env = time.perf_counter() - began, env.user_env
            self._name = user_env.name if isinstance(user_env, EnvProcess) else name_of(user_env)
            observations, leaves = in_words(env.observation_spec()), tree.flatten(env.actions)
            facts = [f"observations {observations}", f"actions {', '.join(map(actions.in_words, leaves))}"]
            self.findings.fact(ENVIRONMENT, f"{self._name}, built in {self._build_secs:.2g} s", *facts)
            return env
        return None

    def _check_specs(self, env: TrainingEnvironment) -> bool:
        """Whether the trial can continue: wrong values of the params, which others report, may end it."""
        self.findings.error(ENVIRONMENT, *self._impossible(env))
        if env.device is not None:
            tried = "tried with its default action" if self.workers else "not stepped, as this start has no workers"
            self.findings.fact(ENVIRONMENT, f"acts in real time: {tried}; each worker builds it once")
            if self.params.action_history == 0:
                self.findings.note(
                    ENVIRONMENT,
                    "action_history=0 in real time: the policy does not see the action that still acts while it "
                    "computes the next one: set it to 1, or to 1 and the device's delay in time steps",
                )
        faults = Findings()
        with told(faults, ENVIRONMENT, _COLLECT):
            for find in spec_checks.FINDINGS:
                self.findings.error(ENVIRONMENT, *find(self.params, env))
            if not self.findings.errors:
                spec_checks.check_images(self.params, env, self.findings)
            if not self.findings.errors:
                layout = run_layout(self.params, env.observation_spec(), env.action_spec())
                is_here = self.has_trainer and machine_checks.JOB_MB not in os.environ  # Else its memory is another's.
                available = machine_checks.available_memory() if is_here else None
                self.findings.error(
                    AGENT, *spec_checks.too_large(self.params, env.observation_spec(), layout, available)
                )
        if not self.findings.errors:
            self.findings.extend(faults)
        return not faults.errors

    def _impossible(self, env: TrainingEnvironment) -> Iterator[str]:
        """What a run can't do with an environment of this kind."""
        device = env.device
        if device is not None and self.envs_per_worker > 1:
            yield several_devices(self.envs_per_worker)
        if device is not None and device.has_real_clock and self.deterministic:
            yield (
                "SAC_DETERMINISTIC=1 repeats every step, and the environment acts in real time by a real clock: use "
                "SAC_DETERMINISTIC=0, or give RealTimeEnvironment a clock=VirtualClock() where the device is a "
                "simulation"
            )
        has_own = [overrides_any(self.params, f"{kind}_env_args_kwargs") for kind in ("collect", "eval")]
        if device is not None and has_own == [True, False]:
            yield (
                "the environment acts in real time, and is played and filmed with the arguments of "
                "eval_env_args_kwargs, which has none: let it return those of collect_env_args_kwargs"
            )
        is_single = self.envs_per_worker == 1 and device is None and not env.is_vector
        # A restarted worker repeats the episode under way; it can't repeat several, nor steps in real time.
        if self.deterministic and self.params.env_steps_per_iter is not None and not is_single:
            yield (
                "SAC_DETERMINISTIC=1 repeats the episode under way after a restart, which a worker can in one "
                "environment without lanes that does not act in real time: set num_train_episodes_per_iter instead of "
                "env_steps_per_iter"
            )

    def _try_steps(self, env: TrainingEnvironment) -> Episode | None:
        """All that needs an episode."""
        params, findings = self.params, self.findings
        episode = self._try_episode(env)
        if self._is_fine:
            self._note_wrappers(env)
        if self._is_fine and env.is_vector:
            with self._trying(CONTRACT, f"reset() or step() of all lanes of {_COLLECT}", _COLLECT):
                self._check_lanes(env)
        if first := env.outside:
            findings.note(CONTRACT, f"{first}. It is kept; strict_observation_bounds = True makes it a fault")
        eval_env = None
        if params.num_eval_episodes and env.device is not None:
            findings.fact(EVALUATION, "in the environment that collects: it acts in real time, so there is one")
        elif params.num_eval_episodes and self._is_fine:  # Else most likely the same again.
            eval_env = self._try_neighbour(env, episode, Neighbour(EVAL, self.seed, 0, _EVAL), self.evaluates)
        if self._is_fine and self.envs_per_worker > 1 and not env.is_vector:
            other = Neighbour(COLLECT, self.seed + 1, 1, "another environment of the worker")
            self._try_neighbour(env, episode, other, is_here=True)
        if self._is_fine and episode is not None:
            with self._trying(ENVIRONMENT, f"compute_reward of {_COLLECT}"):
                spec_checks.check_goal_functions(params, env, episode.first, findings)
            self._try_curriculum(env, eval_env)
        if env.device is not None:
            with contextlib.suppress(Exception):
                env.device.wait()  # Nobody steps it for a while.
        return episode

    def _play(
        self,
        env: TrainingEnvironment,
        name: str,
        seed: int = 0,
        most_steps: int | None = None,
        after_first: Callable[[], Any] | None = None,
    ) -> Episode:
        """An episode, for a second at most, with a call after its first step; the same seed gives the same actions."""
        rng = np.random.default_rng(seed)
        self.enter(f"reset() of {name}")
        time_step = env.reset()
        self.enter(f"step() of {name}")
        first, steps, began = [time_step], 0, time.perf_counter()
        while (
            time_step.step_type != ts.StepType.LAST
            and steps != most_steps
            and time.perf_counter() - began < _EPISODE_SECS
        ):
            time_step = env.step(trial_action(env, rng))
            steps += 1
            if after_first is not None and steps == 1:
                after_first()
            if len(first) <= _COMPARED_STEPS:
                first.append(time_step)
        secs = max(1e-9, time.perf_counter() - began)
        return Episode(first, time_step, steps, secs / max(1, steps))

    def _try_episode(self, env: TrainingEnvironment) -> Episode | None:
        """An episode with random actions, as a worker runs it."""
        played, contract, episode = Findings(), Findings(), None
        with told(played, EPISODE, _COLLECT):
            episode = self._play(env, _COLLECT, self.seed)
            played.fact(EPISODE, self._end_in_words(env, episode), f"{1 / episode.step_secs:,.0f} steps/s")
        self.enter(f"reset() and step() of {_COLLECT}")
        # What the environment itself returns explains best why the conversion fails.
        with contextlib.suppress(Exception):
            # TF-Agents' wrappers forward `action_space` to the gym environment inside, but return time steps.
            has_other_contract = isinstance(env.user_env, py_environment.PyEnvironment | EnvProcess)
            # A mask is not followed there.
            if not (has_other_contract or env.is_vector or env.legal is not None):
                rng = np.random.default_rng(0)
                check_contract(env.user_env, contract, lambda: env.in_environment_units(trial_action(env, rng)))
        if not contract.errors:
            self.findings.extend(played)
        self.findings.extend(contract)
        return episode

    def _end_in_words(self, env: TrainingEnvironment, episode: Episode) -> str:
        steps, horizon = episode.steps, self.params.horizon
        if not episode.has_ended:
            return f"no end within {steps} steps ({_EPISODE_SECS:g} s); horizon={horizon} ends it at the latest"
        if episode.last.discount == 0.0:
            taken = "random actions" if env.device is None else "its default action"
            return f"terminates, with {taken} after {steps} steps"
        limit = "time limit of its own" if steps < horizon else f"time limit (horizon={horizon})"
        return f"ends by a {limit} after {steps} steps"

    def _note_wrappers(self, env: TrainingEnvironment) -> None:
        """Tells of running statistics, of wrappers that cost much, and of a mask that rules out nothing."""
        spec = env.observation_spec()
        is_unused = actions.mask_leaf(spec, env.action_spec()) is None
        if is_unused and (ACTION_MASK in env.info or gym_driver.mask_of(spec) is not None):
            self.findings.note(
                ENVIRONMENT,
                f"{ACTION_MASK} rules out no action here (docs/reference/environments.md, Actions): if illegal ones "
                "matter, return it as a part of the observation, and use dqn, iqn or sac_discrete",
            )
        for name in kinds.running_statistics(env.user_env):
            self.findings.note(
                ENVIRONMENT,
                f"{name} holds a running mean and variance, its own in each worker and each evaluation: where it "
                "normalises, remove it, and set TrainParams.normalize_observations or normalize_rewards to True",
            )
        for name in {type(layer).__name__ for layer in gym_driver.layers_within(env.user_env)} & _COSTLY.keys():
            self.findings.note(ENVIRONMENT, f"the wrapper {name} {_COSTLY[name]}")

    def _check_lanes(self, env: TrainingEnvironment) -> None:
        """Runs some episodes in all lanes of a vector environment."""
        params, count = self.params, env.num_lanes
        if self.envs_per_worker > 1:
            self.findings.error(CONTRACT, several_vectors(self.envs_per_worker, count))
        if self.deterministic and not env.can_reseed:
            self.findings.error(
                CONTRACT,
                "SAC_DETERMINISTIC=1 seeds the environment anew for each iteration, and EnvPool takes a seed only when "
                "it is built: use SAC_DETERMINISTIC=0, or gymnasium.make_vec",
            )
        for name in ("greedy_episode_share", "keep_best_episodes"):
            if value := getattr(params, name):
                self.findings.error(
                    CONTRACT,
                    f"TrainParams.{name}={shown(value)} does not work with a vector environment, whose lanes share "
                    f"inference and seed: set it to {getattr(TrainParamsBase, name)!r}, or return single environments "
                    f"and set SAC_ENVS_PER_WORKER={count}",
                )
        actor = RandomActor(env.action_spec(), np.random.default_rng(0))
        costs.run_lanes(env, actor, _EPISODE_SECS, episodes=2 * count)  # Each lane begins another one in most cases.
        self.findings.fact(CONTRACT, f"{count} lanes")

    def _try_neighbour(
        self, env: TrainingEnvironment, episode: Episode | None, other: Neighbour, is_here: bool
    ) -> TrainingEnvironment | None:
        """Whether another environment runs beside the collect environment; returns it if it is in this process."""
        where = EVALUATION if other.kind == EVAL else ENVIRONMENT
        with self._trying(where, f"building {other.name}", other.name):
            try:
                return self._try_beside(env, episode, other, is_here, self.findings)
            except EnvironmentDiedError as error:
                self.findings.note(where, f"{other.name} could not be tried: {error}")
            except (Exception, SystemExit) as error:
                remedy = self._apart(env, other.kind)
                if not is_here or not works(lambda: self._try_beside(env, episode, other, False, Findings())):
                    works(self._stack.close)
                    if not works(lambda: self._other.call(other, specs_of(env), self.seed, _COMPARED_STEPS)):
                        raise  # It does not run alone, either.
                    remedy = _OF_ITS_OWN
                words = neighbours.in_words(error)
                raise UserError(f"it can't run beside {_COLLECT} ({words}): {remedy}") from None
        return None

    def _try_beside(
        self, env: TrainingEnvironment, episode: Episode | None, other: Neighbour, is_here: bool, findings: Findings
    ) -> TrainingEnvironment | None:
        """Whether it is like the collect environment, and leaves it alone; returns it if it is in this process.

        Raises:
          UserError: It changes what happens in the collect environment.
        """
        began, here, specs = time.perf_counter(), None, specs_of(env)
        play_other = functools.partial(self._other.call, other, specs)
        if is_here:
            collect_env = env if other.kind == EVAL else None
            here = self._stack.enter_context(
                loading.make_env(self.params, *other[:3], name=other.name, collect_env=collect_env)
            )
            play_other = functools.partial(self._play_other, here, other, specs)
        differences, episodes = play_other(self.seed, _COMPARED_STEPS)
        findings.error(EVALUATION if other.kind == EVAL else ENVIRONMENT, *differences)
        if not differences and episode is not None and time.perf_counter() - began <= 2 * _EPISODE_SECS:
            self._disturb(env, episode, other, here, play_other)
            is_same = first_difference(episode.first, episodes[0]) is None and first_difference(*episodes) is not None
            if other.kind == COLLECT and is_same:
                words = f"{other.name} has the same episodes, though its seed is another one: workers see the same"
                findings.note(SEEDING, f"{words}. {_SEEDED if env.can_reseed else _UNSEEDED}")
        if other.kind == EVAL and not differences:
            findings.fact(EVALUATION, "the same observations and actions as for collecting")
        return here

    def _disturb(
        self,
        env: TrainingEnvironment,
        episode: Episode,
        other: Neighbour,
        here: TrainingEnvironment | None,
        play_other: Callable[..., Any],
    ) -> None:
        """Plays the collect environment while another one acts in this way and in that.

        Raises:
          UserError: That changes the episode.
        """
        steps = max(2, min(_COMPARED_STEPS, int(_DISTURBED_SECS / episode.step_secs)))
        is_between = other.kind == EVAL and self.params.env_steps_per_iter is None  # Of whole episodes.

        def act(actions_seed: int) -> None:
            if here is not None:
                here.reseed(other.seed)
            play_other(actions_seed, steps)
            random.seed(self.seed)  # Other actions may have drawn more.
            np.random.seed(self.seed % 2**32)

        def play(actions_seed: int) -> list[ts.TimeStep]:
            gym_driver.seed_episode(env, self.seed % 2**32)
            if is_between:
                act(actions_seed)
                return self._play(env, _COLLECT, self.seed, steps).first
            return self._play(env, _COLLECT, self.seed, steps, lambda: act(actions_seed)).first

        if (step := neighbours.disturbed_step(play)) is not None:
            raise UserError(
                f"its actions change what happens in that one from step {step} on: they share a state, such as a "
                "simulator, a variable of a module, or a file"
            )

    def _play_other(
        self, env: TrainingEnvironment, other: Neighbour, specs: Mapping[str, Any], actions_seed: int, steps: int
    ) -> tuple[list[str], list[list[ts.TimeStep]]]:
        """(what differs from the collect environment's specs, first steps of two episodes if nothing does)."""
        differences = spec_checks.check_same_specs(specs, specs_of(env), other.name)
        episodes = 0 if differences else 2
        return differences, [self._play(env, other.name, actions_seed, steps).first for _ in range(episodes)]

    def _play_alone(self, other: Neighbour, *arguments: Any) -> tuple[list[str], list[list[ts.TimeStep]]]:
        """In the other process: `_play_other` of an environment that is built for it."""
        self.enter = lambda doing: None
        with loading.make_env(self.params, *other[:3]) as env:
            return self._play_other(env, other, *arguments)

    def _apart(self, env: TrainingEnvironment, kind: str) -> str:
        """How each environment gets a process."""
        others = "SAC_EVAL_WORKERS=1" if kind == EVAL else "SAC_ENVS_PER_WORKER=1 with more SAC_NUM_COLLECT_WORKERS"
        is_ours = isinstance(env.user_env, py_environment.PyEnvironment)
        return f"{'' if is_ours else f'SAC_ENV_PYTHON={sys.executable} or '}{others} gives each a process"

    def _compare_seeds(self, episode: Episode) -> None:
        """Whether the same seed gives the same episode twice."""
        if self._build_secs > _CHEAP_SECS:
            words = f"not looked at: building another environment takes {self._build_secs:.1f} s"
            self.findings.fact(SEEDING, f"{words}, more than {_CHEAP_SECS:g} s")
            return
        self.enter("building the collect environment again")
        try:
            with loading.make_collect_env(self.params, 0, self.seed) as again:
                played = self._play(again, "the collect environment that is built again", self.seed, _COMPARED_STEPS)
        except Exception as error:
            words = f"{_COLLECT} could not be built again once it was closed: {neighbours.in_words(error)}"
            self.findings.note(SEEDING, words)
            return
        if (step := first_difference(episode.first, played.first)) is None:
            self.findings.fact(SEEDING, "the same seed gives the same episode")
            return
        where = f"in step {step}" if step else "in the first observation"
        words = f"two environments with the same seed differ {where}: no run can be repeated exactly"
        self.findings.note(SEEDING, f"{words}. {_SEEDED if again.can_reseed else _UNSEEDED}")

    def _try_curriculum(self, collect_env: TrainingEnvironment, eval_env: TrainingEnvironment | None) -> None:
        """Sets every parameter of the curriculum to its first and to its last value, and takes a few steps with each.

        `eval_env` gets the values that are for evaluation.
        """
        if not self.params.env_config.get("curriculum") or check_curriculum(self.params.env_config):
            return  # None, or reported by the check of the JSON.
        curriculum, errors = Curriculum.from_config(self.params.env_config), len(self.findings.errors)
        values: dict[str, list[float]] = {}
        for name, value in curriculum.end_values():
            values.setdefault(name, []).append(value)
        for name, ends in values.items():
            has_effect = self._try_values(collect_env, _COLLECT, name, ends)
            if has_effect is not None and eval_env is not None and curriculum.apply_to_eval(name):
                self._try_values(eval_env, _EVAL, name, ends)
            if has_effect is False and len(ends) == 2:
                self.findings.note(
                    CURRICULUM,
                    f"curriculum.{name}: set_state changes no attribute, and nothing in {_STEPS_WITH_VALUE} steps with "
                    "the same seed: let set_state use it, or remove the parameter",
                )
        if len(self.findings.errors) == errors:
            words = ", ".join(f"{name} = {value:g}" for name, value in curriculum.end_values())
            self.findings.fact(CURRICULUM, f"set_state works with {words}")

    def _try_values(self, env: TrainingEnvironment, which: str, name: str, values: Sequence[float]) -> bool | None:
        """Whether they change an attribute, or what some steps with the same seed give; None: one of them fails.

        Nothing is compared, and they are said to, where attributes can't be seen.
        """
        is_seen = not (env.device or env.is_vector or isinstance(env.user_env, EnvProcess))
        has_effect, played = not is_seen, set[bytes]()
        for value in values:
            before, doing = _attributes(env) if is_seen else {}, f"set_state() of {name} = {value}"
            with self._trying(CURRICULUM, doing, f"curriculum.{name}: set_state({{{name!r}: {value}}})"):
                env.set_state({name: value})
                if is_seen:
                    has_effect |= _attributes(env) != before
                    env.reseed(0)
                first = self._play(env, f"{which} with {name} = {value}", 0, _STEPS_WITH_VALUE).first
                played.add(pickle.dumps(tree.flatten(first)))
                continue
            return None  # With the other value most likely the same again.
        return has_effect or len(played) > 1

    # The agent.

    def _build_agent(self, env: TrainingEnvironment) -> Any:
        """Calls the user's other hooks: a mistake in them would end every role repeatedly."""
        self.enter("building the agent")
        for name in _HOOKS:
            is_observer = name != "callbacks_ctor"
            with told(self.findings, AGENT, name, names_it=False):
                returned = getattr(self.params, name)()
                if not isinstance(returned, tuple | list):
                    raise UserError(f"{name} must return a list or tuple, found {shown(returned)}: () is none")
                for item in returned:
                    if not (callable(item) or (is_observer and takers_of([item]))):
                        argument = "a Trajectory" if is_observer else "what is logged"
                        raise UserError(f"{name}: each of them must be callable with {argument}, found {shown(item)}")
        agent = None
        tf.keras.utils.set_random_seed(self.seed % 2**32)  # As the trainer does.
        with told(self.findings, AGENT, "agent_ctor, actor_ctor or critic_ctor", names_it=False):
            observation, action = map(tensor_spec.from_spec, (env.observation_spec(), env.action_spec()))
            agent = make_agent(self.params, observation, action, tf.Variable(0, dtype=tf.int64))
            weights = sum(map(_count, agent.trainable_variables))
            self.findings.fact(AGENT, f"{type(agent).__name__}, {weights:,} weights")
        if agent is not None:
            with told(self.findings, AGENT, "an action of the agent's policy", names_it=False):
                hold_steps = self.params.noise_hold_steps or 1
                policy = make_worker_policy(agent, 0, _LANES, self.params.frame_stack, noise_hold_steps=hold_steps)
                if self.deterministic:
                    policy.reseed(0)
                if policy.inference == "numpy":
                    check_actions(policy, of_single_frames(agent.collect_policy, self.params.frame_stack))
        return agent

    def _try_agent(self, agent: Any, env: TrainingEnvironment) -> None:
        """An update, and the SavedModel of a start, written to a temporary folder."""
        params, errors = self.params, len(self.findings.errors)
        with self._trying(AGENT, "an update of the agent", names_it=False):
            check_agent(params, agent)
        # The toolkit's own networks can be saved: no start waits for that.
        is_own = overrides_any(params, "agent_ctor", "actor_ctor") or params.preprocessing_combiner is not None
        if len(self.findings.errors) > errors or not (self.render or is_own):
            return
        with (
            tempfile.TemporaryDirectory(prefix="sac_check_") as folder,
            self._trying(AGENT, "saving the agent's policy as a SavedModel"),
            contextlib.suppress(OSError, tf.errors.ResourceExhaustedError),  # A full disk says nothing of the agent.
        ):
            paths, train_step = RunPaths(Path(folder)), agent.train_step_counter
            PolicyExport(paths, agent, env.actions, train_step, params.frame_stack).save_model()

    def _foretell(self, plan: CpuPlan, agent: Any, env: TrainingEnvironment, episode: Episode) -> None:
        """Measures updates and steps, and reports how long the run takes."""
        params, lengths = self.params, list[int]()
        # The plan has experts, too, but not the workers that join from elsewhere; a run has one or the other.
        workers = max(params.compute_config.get("num_collect_workers", 0), len(plan.workers) - plan.evaluators)
        # A device has a pace of its own, and is not driven by a policy without training.
        step = costs.Cost(episode.step_secs, episode.step_secs if env.device is None else 0.0)
        with self._trying(DURATION, "measuring steps with the agent's policy", "measuring"):
            with costs.on_cpus(plan.workers[0]), contextlib.suppress(EnvironmentFault):  # A run survives one.
                if env.device is None:
                    step, lengths = costs.time_steps(params, agent, env, _MEASURING_SECS, self.seed)
            self.enter("measuring updates of the agent")
            with costs.on_cpus(plan.trainer):
                settings = params, agent, _MEASURING_SECS, self.seed
                update = costs.time_updates(*settings, deterministic=self.deterministic)
            lengths = lengths or [episode.steps if episode.has_ended else params.horizon]
            measured = costs.Costs(update, step, float(np.mean(lengths)))
            facts = costs.foretell(params, measured, workers, plan.shared_cpus, self.deterministic, plan.evaluators)
            self.findings.fact(DURATION, *facts)

    def _draw(self, env: TrainingEnvironment) -> None:
        """One picture, as run.py draws it: in another environment, unless there is but one device."""
        self.enter(RENDERING)
        try:
            with contextlib.ExitStack() as stack:
                if env.device is None:
                    env = stack.enter_context(loading.make_play_env(self.params, self.seed, render=True))
                rendering.enable_frames(env.user_env)
                env.reset()
                frame = env.render_frame()
                self.findings.fact(RENDERING, f"frames of {frame.shape[1]} x {frame.shape[0]}")
        except Exception as error:
            self.findings.note(RENDERING, f"{neighbours.in_words(error)}; training needs no pictures")


def check_actions(policy: WorkerPolicy, network: tf_policy.TFPolicy) -> None:
    """Compares a worker's greedy actions with the network's, in the first two steps of some episodes.

    Raises:
      UserError: They differ by more than a rounding.
    """
    lanes, rng, differences = policy.num_lanes, np.random.default_rng(0), []
    state = network.get_initial_state(lanes)
    for step_type in (ts.StepType.FIRST, ts.StepType.MID):
        observation = export_files.random_observations(network, lanes, rng)
        columns = np.full(lanes, step_type), np.zeros(lanes, np.float32), np.ones(lanes, np.float32)
        step = network.distribution(tf.nest.map_structure(tf.constant, ts.TimeStep(*columns, observation)), state)
        state = step.state
        (chosen,) = policy.act(LaneSteps(*columns, tf.nest.flatten(observation), observation), greedy=True)
        if hasattr(step.action, "logits_parameter"):
            differences.append(export_files.regret(chosen, step.action.logits_parameter().numpy()))
        else:
            differences.append(np.abs(chosen - export_files.mode(step.action).numpy()).max())
    if not max(differences) <= export_files.TOLERANCE:
        raise UserError(
            f"workers would act in NumPy, and these actions differ from the network's by {max(differences):g} (at most "
            f"{export_files.TOLERANCE:g} is a rounding): let actor_ctor return a subclass of its network, which "
            "TensorFlow computes"
        )


def trial_action(env: TrainingEnvironment, rng: np.random.Generator) -> Any:
    """A random legal action; the default one of a device, which random ones may harm, or the middle of its bounds."""
    if env.device is None and env.legal is not None:
        return actions.random_legal(env.legal[0], rng)
    if env.device is None:
        return tree.map_structure(lambda spec: actions.random_actions(spec, rng), env.action_spec())
    return env.device.trial_action(env.actions)


def _sizes(agent: Any) -> tuple[int, int]:
    """(bytes of the agent's variables with Adam's two moments, bytes of the policy's)."""
    own, trainable, policy = (
        sum(_count(variable) * variable.dtype.size for variable in variables)
        for variables in (agent.variables, agent.trainable_variables, agent.policy.variables())
    )
    return own + 2 * trainable, policy


def _count(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64))


def _attributes(env: TrainingEnvironment) -> dict[str, bytes]:
    """Content of the attributes of the environment and of its wrappers; without what can't be compared."""
    contents = {}
    for depth, layer in enumerate(gym_layers(env.user_env)):
        for name, value in getattr(layer, "__dict__", {}).items():
            with contextlib.suppress(Exception):
                contents[f"{depth}.{name}"] = b"" if name == "env" else pickle.dumps(value)
    return contents
