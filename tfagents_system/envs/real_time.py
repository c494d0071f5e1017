"""Environments that act in real time: what a run asks of them, and RealTimeEnvironment, with rtgym's elastic clock.

    time step          |<- time_step_duration ->|
    sent               a_(t-1)                  a_t                      a_(t+1)
    captured           |<- start_obs_capture ->|o_t
    step(a_t)              |<- waits ---------->| returns o_t, observed under a_(t-1)

An action thus acts while the next one is computed: action_history gives the policy the actions that are still to act.
docs/tutorials/real_robot.md shows how to connect a device.
"""

from __future__ import annotations

import collections
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import gymnasium
import numpy as np
import tree
from absl import logging

from tfagents_system.checks.rules import near_misses
from tfagents_system.envs.gym_driver import EVALUATION, EVALUATION_EPISODE, device_layer
from tfagents_system.errors import UserError

_PARTS = ("time_step", "step", "join", "inference", "send_control", "retrieve_obs", "send_delay")
_REQUIRED = (
    "send_control",
    "get_obs_rew_terminated_info",
    "reset",
    "get_observation_space",
    "get_action_space",
    "get_default_action",
)
_WARNING_SECS = 10  # Between two warnings of late steps.
_KEPT_STEPS = 100_000  # 83 minutes at 20 Hz.


class Background:
    """Calls functions in a daemon thread, in order. One that hangs does not keep the program from ending."""

    def __init__(self, name: str) -> None:
        self._calls = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Has the thread call a function, behind all that it is to call already."""
        result: Future[Any] = Future()
        self._calls.put((function, result))
        return result

    def close(self) -> None:
        """Ends the thread."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            _call(*call)


def _call(function: Callable[[], Any], result: Future[Any]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:  # For whoever asks for the result.
        result.set_exception(error)


# What a run asks of a device.


class Device:
    """What a run asks of RealTimeEnvironment, of rtgym's, or of a user's own environment that acts in real time.

    The latter has an attribute `real_time = True`, and what of the following it needs: `wait()`, `default_action` or
    `get_default_action()`, `ep_max_length`, `set_evaluation_episode(number)`, `take_metrics()`.

    Args:
      layer: The environment, or one that it wraps.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._left_out: set[str] = set()

    @property
    def has_real_clock(self) -> bool:
        """Whether time passes by itself."""
        return bool(getattr(self._layer, "has_real_clock", True))

    def wait(self) -> None:
        """Lets the device rest until the next reset or step."""
        getattr(self._layer, "wait", lambda: None)()

    def limit_steps(self, horizon: int) -> None:
        """An episode ends after so many steps at the latest, and the last action is not sent."""
        if hasattr(self._layer, "ep_max_length"):
            limit = self._layer.ep_max_length
            self._layer.ep_max_length = horizon if limit is None else min(limit, horizon)

    def take_metrics(self) -> dict[str, float]:
        """What the steps since the last call were like; see RealTimeEnvironment. Empty where it does not say.

        What is no finite number is left out, with a warning the first time.
        """
        taken = getattr(self._layer, "take_metrics", dict)() or {}
        metrics = {str(name): _as_float(value) for name, value in taken.items()}
        finite = {name: value for name, value in metrics.items() if abs(value) < 1e38}
        for name in sorted(metrics.keys() - finite.keys() - self._left_out):
            self._left_out.add(name)
            logging.warning("take_metrics() of the environment: %s is no finite number: it is left out meanwhile", name)
        return finite

    def default_action(self, actions: Any) -> Any:
        """What is harmless, as an agent's action; None where the environment does not say.

        Args:
          actions: Nest of LeafActions.

        Raises:
          UserError: It is not one of the environment's actions.
        """
        default = getattr(self._layer, "default_action", None)
        if default is None:
            default = getattr(self._layer, "get_default_action", lambda: None)()
        if default is None:
            return None
        try:
            return tree.map_structure_up_to(actions, lambda leaf, value: leaf.to_agent(value), actions, default)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"the default action {default!r} is not one of the action space ({error}): correct it"
            ) from None

    def trial_action(self, actions: Any) -> Any:
        """What a device may be tried with, as an agent's action: the default one, or the middle of the bounds.

        Raises:
          UserError: It has no default action, and chooses one of n: these have no middle.
        """
        default = self.default_action(actions)
        if default is not None:
            return default
        if any(leaf.rows is not None for leaf in tree.flatten(actions)):
            raise UserError(
                "the environment acts in real time, its actions are one of n, and it does not say which of them is "
                "harmless: give it a default_action or get_default_action() (the interface, if it has one)"
            )
        return tree.map_structure(lambda leaf: np.zeros(leaf.spec.shape, leaf.spec.dtype), actions)

    def watched(self) -> tuple[Any, float] | None:
        """The interface (see RealTimeEnvironment), for who only looks at it, and the seconds of a time step.

        None: it has none.
        """
        interface, secs = (getattr(self._layer, name, None) for name in ("interface", "time_step_duration"))
        return None if interface is None or secs is None else (interface, float(secs))

    def take_times(self) -> dict[str, list[float]]:
        """Durations of the parts of its steps, see RealTimeEnvironment; empty where it does not say."""
        return dict(getattr(self._layer, "take_times", dict)())


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def device_of(layers: Iterable[Any]) -> Device | None:
    """The device of an environment, None where its steps wait for the policy.

    Args:
      layers: The environment and those it wraps.

    Raises:
      UserError: It is one of rtgym, and all its steps would be late.
    """
    layer = device_layer(layers)
    if layer is None:
        return None
    if not hasattr(layer, "take_metrics") and hasattr(layer, "_update_timestamps"):
        if layer.time_step_duration != 0:  # Else its steps are taken as fast as they can be.
            check_time_step(layer.time_step_duration, layer.start_obs_capture, layer.time_step_timeout_factor)
        _RtgymSteps(layer)
    return Device(layer)


def evaluation_options(options: dict[str, Any] | None, episode: int | None) -> dict[str, Any] | None:
    """Options of a device's reset, for an evaluation's episode of that number; None: it is of no evaluation."""
    return options if episode is None else {**(options or {}), EVALUATION: True, EVALUATION_EPISODE: episode}


def check_time_step(duration: float, capture: float, factor: float) -> None:
    """Whether steps can be in time.

    Args:
      duration, capture, factor: time_step_duration, start_obs_capture and time_step_timeout_factor, as of
        RealTimeEnvironment.

    Raises:
      UserError: They can't.
    """
    if not duration > 0:
        raise UserError(f"time_step_duration={duration:g} must be above 0 seconds: correct it")
    if not factor >= 0:
        raise UserError(f"time_step_timeout_factor={factor:g} must be at least 0: correct it")
    if not 0 <= capture <= duration * (1.0 + factor):
        raise UserError(
            f"start_obs_capture={capture:g} must be from 0 to time_step_duration={duration:g} plus its elasticity, "
            f"{duration * (1.0 + factor):g} seconds, or every step would be late: lower it"
        )


class _RtgymSteps:
    """Counts late steps of an environment of rtgym by its own rule, and tells it of evaluations.

    rtgym (0.16) has no hooks for either: methods of the instance are replaced.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._late_steps = 0  # Since they were asked for.
        self._end = -math.inf  # Of the running time step.
        self._is_first = False  # The next action is that of reset(), which may be late.
        self._evaluation_episode: int | None = None
        self._reset, env.reset = env.reset, self.reset
        self._begin_time_step, env._update_timestamps = env._update_timestamps, self.begin_time_step
        env.take_metrics, env.set_evaluation_episode = self.take_metrics, self.set_evaluation_episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        options, self._evaluation_episode = evaluation_options(options, self._evaluation_episode), None
        self._is_first = True
        reset: tuple[Any, dict[str, Any]] = self._reset(seed=seed, options=options)
        return reset

    def begin_time_step(self) -> None:
        """Called by rtgym when an action was sent, in its own thread."""
        now, env = time.perf_counter(), self._env
        is_late = now >= self._end + env.time_step_timeout
        self._late_steps += is_late and not self._is_first and not env.is_waiting
        self._end = (now if is_late else self._end) + env.time_step_duration
        self._is_first = False
        self._begin_time_step()

    def set_evaluation_episode(self, number: int) -> None:
        """See RealTimeEnvironment."""
        self._evaluation_episode = number

    def take_metrics(self) -> dict[str, float]:
        """The late steps since the last call."""
        late_steps, self._late_steps = self._late_steps, 0
        return {"late_steps": float(late_steps)}


# Clocks, in seconds. `call_at` calls a function at a time, whatever the caller does then; one call at a time.


class MonotonicClock:
    """The machine's monotonic clock. A thread makes the calls.

    Attributes:
      is_real: Time passes by itself.
    """

    is_real = True
    _thread: Background | None = None

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, when: float) -> None:
        """Returns at that time, or at once if it has passed."""
        while (left := when - time.monotonic()) > 0:
            time.sleep(left)

    def call_at(self, when: float, function: Callable[[], Any]) -> Future[Any]:
        def call() -> Any:
            self.sleep_until(when)
            return function()

        if self._thread is None:
            self._thread = Background("clock")
        return self._thread.call(call)

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None


class VirtualClock:
    """A clock for tests and simulations: it stands still unless somebody sleeps.

    A call sees its own time, however far the caller sleeps, and what it takes does not hold up the caller.
    """

    is_real = False

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._call: tuple[float, Callable[[], Any], Future[Any]] | None = None

    def now(self) -> float:
        return self._now

    def advance(self, secs: float) -> None:
        """Lets time pass."""
        self.sleep_until(self._now + secs)

    def sleep_until(self, when: float) -> None:
        when = max(self._now, when)
        if self._call is not None and self._call[0] <= when:
            (due, function, result), self._call = self._call, None
            self._now = max(self._now, due)
            _call(function, result)
        self._now = when

    def call_at(self, when: float, function: Callable[[], Any]) -> Future[Any]:
        result: Future[Any] = Future()
        self._call = when, function, result
        return result

    def close(self) -> None:
        self._call = None


Clock = MonotonicClock | VirtualClock


class RealTimeEnvironment(gymnasium.Env):
    """Steps of a device at its own pace, with Gymnasium's interface.

    `step(a_t)` waits for the end of the running time step, returns what was captured `start_obs_capture` after that has
    begun, and sends a_t. The next time step begins where the last one ended, if a_t was sent within
    `time_step_timeout_factor` time steps after that, else when it was sent: such a step is late. `reset()` sends the
    default action. After an episode has ended nothing is sent.

    Args:
      interface: The device, with the methods of rtgym's RealTimeGymInterface; it need not derive from that.
        `send_control(action)` lets an action act and must not wait for it. `get_obs_rew_terminated_info()` returns what
        is known now; another thread may call it. `reset(seed, options)` may take long, and returns an observation and
        a dictionary; in an evaluation `options` is `{"evaluation": True, "episode": 3}`. `get_default_action()` returns
        what is harmless. Optional: `wait()` lets it rest until the next reset or action, `render()` returns a picture,
        `set_state(dict)` sets parameters, `close()` frees it.
      time_step_duration: Seconds.
      start_obs_capture: Seconds from a time step's begin to its observation; None: its end. A capture may last longer
        than its time step, within the elasticity.
      time_step_timeout_factor: The elasticity, in time steps.
      wait_on_done: The device is told to wait when an episode has ended.
      clock: None: the machine's.
      ep_max_length: An episode is truncated after so many steps; None: the horizon alone decides.

    Attributes:
      real_time: True: its steps do not wait for the policy.
      has_real_clock: Whether time passes by itself.
      late_steps: How many there were.
      time_step_start: When the running time step has begun, by the clock.

    Raises:
      UserError: A time step is impossible, or the device lacks a method.
    """

    real_time = True

    def __init__(
        self,
        interface: Any,
        time_step_duration: float = 0.05,
        start_obs_capture: float | None = None,
        time_step_timeout_factor: float = 1.0,
        wait_on_done: bool = False,
        clock: Clock | None = None,
        ep_max_length: int | None = None,
    ) -> None:
        capture_secs = time_step_duration if start_obs_capture is None else start_obs_capture
        _check_methods(interface)
        check_time_step(time_step_duration, capture_secs, time_step_timeout_factor)
        self.interface = interface
        self.ep_max_length = ep_max_length
        self.late_steps = self._reported_late_steps = 0
        self._times = {part: collections.deque[float](maxlen=_KEPT_STEPS) for part in _PARTS}
        self.time_step_start = 0.0
        self.render_mode = "rgb_array" if hasattr(interface, "render") else None
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, round(1.0 / time_step_duration))}
        self.observation_space = interface.get_observation_space()
        self.action_space = interface.get_action_space()
        self.time_step_duration, self._capture_secs = time_step_duration, capture_secs
        self._elasticity = time_step_timeout_factor * time_step_duration
        self._wait_on_done = wait_on_done
        self._clock = clock or MonotonicClock()
        self.has_real_clock = self._clock.is_real
        self._evaluation_episode: int | None = None
        self._end: float | None = None  # Of the running time step.
        self._capture: Future[Any] | None = None
        self._captured_at = 0.0
        self._one_at_a_time = threading.Lock()  # A picture may be drawn while an observation is captured.
        self._has_begun = self._is_running = self._is_waiting = False
        self._steps = 0
        self._sent_at: float | None = None
        self._returned_at = 0.0

    @property
    def default_action(self) -> Any:
        """The device's, in its own units."""
        return self.interface.get_default_action()

    # Gymnasium's interface.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._let_time_step_end()
        # The time of a reset is no time step's, whoever has ended the episode before.
        self._is_running, self._capture, self._sent_at = False, None, None
        self._has_begun, self._is_waiting = True, False  # A reset that is interrupted may have moved it.
        options, self._evaluation_episode = evaluation_options(options, self._evaluation_episode), None
        observation, info = self.interface.reset(seed=seed, options=options)
        if self._end is None:
            self._end = self._clock.now()
        self._steps = 0
        self._send(self.default_action, may_be_late=False)
        self._is_running = True
        self._returned_at = self._clock.now()
        return _as_space(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._is_running:
            raise RuntimeError("no episode is under way: call reset() first")
        began = self._clock.now()
        if not self._is_waiting:  # Else it was a pause, not the policy.
            self._times["inference"].append(began - self._returned_at)
        observation, reward, terminated, info = self._finish_time_step()
        self._times["join"].append(self._clock.now() - began)
        self._steps += 1
        truncated = not terminated and self.ep_max_length is not None and self._steps >= self.ep_max_length
        if terminated or truncated:
            self._is_running, self._sent_at = False, None
            if self._wait_on_done:
                self.wait()
        else:
            self._send(action, may_be_late=True)
        self._returned_at = self._clock.now()
        self._times["step"].append(self._returned_at - began)
        return _as_space(observation), reward, terminated, truncated, info

    def set_evaluation_episode(self, number: int) -> None:
        """Which of an evaluation's episodes the next reset begins, from 0: the device's `reset` is told."""
        self._evaluation_episode = number

    def take_metrics(self) -> dict[str, float]:
        """Of the steps since the last call: how many were late, and 99th percentiles in milliseconds.

        `step_ms_p99` is of the time from one action sent to the next, `inference_ms_p99` of the policy's and all else
        that the caller does.
        """
        late_steps, self._reported_late_steps = self.late_steps - self._reported_late_steps, self.late_steps
        times = self.take_times()
        percentiles = {
            f"{name}_ms_p99": 1e3 * float(np.percentile(times[part], 99, method="higher")) if times[part] else 0.0
            for name, part in (("step", "time_step"), ("inference", "inference"))
        }
        return {"late_steps": float(late_steps), **percentiles}

    def take_times(self) -> dict[str, list[float]]:
        """Durations of the parts of steps since the last call, in seconds, with rtgym's meaning.

        time_step     from one action sent to the next
        step          of step()
        join          of waiting in step() for the end of the running time step
        inference     from the return of step() or reset() to the next step(): whatever the caller does, unless the
                      device was told to wait in between
        send_control  of the interface's send_control()
        retrieve_obs  of the interface's get_obs_rew_terminated_info()
        send_delay    from the end of a time step to the next action sent
        """
        times = {part: list(values) for part, values in self._times.items()}
        for values in self._times.values():
            values.clear()
        return times

    def wait(self) -> None:
        """Lets the device wait until the next reset or step; does nothing if it waits already.

        In the middle of an episode the running time step ends before; the next step returns its observation.
        """
        if self._is_waiting:
            return
        self._sent_at = None
        if self._is_running:
            self._let_time_step_end()
        getattr(self.interface, "wait", lambda: None)()
        self._is_waiting = True

    def render(self) -> Any:
        with self._one_at_a_time:
            return self.interface.render()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets parameters of the device, which waits meanwhile; the episode is over.

        Raises:
          UserError: It has none.
        """
        set_state = getattr(self.interface, "set_state", None)
        if set_state is None:
            raise UserError(f"{type(self.interface).__name__} has no set_state(): add it, or remove the curriculum")
        self.wait()
        self._is_running = False
        set_state(state)

    def close(self) -> None:
        """Lets the device wait, unless nobody has driven it here, and frees it."""
        try:
            if self._has_begun:
                self.wait()
        finally:
            self._let_time_step_end()
            self._clock.close()
            getattr(self.interface, "close", lambda: None)()

    # The elastic clock.

    def _send(self, action: Any, *, may_be_late: bool) -> None:
        """Sends an action, and begins the time step in which it acts."""
        began = self._clock.now()
        self.interface.send_control(action)
        now = self._clock.now()
        self._times["send_control"].append(now - began)
        assert self._end is not None
        if self._sent_at is not None:
            self._times["time_step"].append(began - self._sent_at)
            self._times["send_delay"].append(began - self._end)
        self._sent_at = began
        is_late = now >= self._end + self._elasticity
        if is_late and may_be_late and not self._is_waiting:
            self.late_steps += 1
            logging.log_every_n_seconds(
                logging.WARNING,
                "step %d of the episode is late: its action was sent %.1f ms after the time step before it had ended, "
                "which may be %.1f; %d late steps so far",
                _WARNING_SECS,
                *(self._steps, 1e3 * (now - self._end), 1e3 * self._elasticity, self.late_steps),
            )
        self._is_waiting = False
        self.time_step_start = now if is_late else self._end
        self._end = self.time_step_start + self.time_step_duration
        self._capture = self._clock.call_at(self.time_step_start + self._capture_secs, self._retrieve)

    def _retrieve(self) -> Any:
        began = self._clock.now()
        try:
            with self._one_at_a_time:
                return self.interface.get_obs_rew_terminated_info()
        finally:
            self._captured_at = self._clock.now()
            self._times["retrieve_obs"].append(self._captured_at - began)

    def _finish_time_step(self) -> Any:
        """Waits for the capture and for the time step's end; returns what was captured."""
        assert self._capture is not None and self._end is not None
        self._clock.sleep_until(self.time_step_start + self._capture_secs)
        capture, self._capture = self._capture, None
        try:
            return capture.result()
        finally:
            self._clock.sleep_until(max(self._end, self._captured_at))

    def _let_time_step_end(self) -> None:
        """Waits for the end of the running time step: the device does one thing at a time. The next step returns its
        observation, or raises what that has raised; a reset forgets it.
        """
        if (capture := self._capture) is None:
            return
        try:
            self._finish_time_step()
        except Exception as error:
            logging.warning("the observation of a time step that was not waited for has failed: %r", error)
        self._capture = capture


def _as_space(observation: Any) -> Any:
    """RTgym's interfaces return a list for a Tuple space."""
    return tuple(observation) if isinstance(observation, list) else observation


def _check_methods(interface: Any) -> None:
    """A device's class is the user's own: what is missing there is told before anything is driven."""
    if missing := [name for name in _REQUIRED if not callable(getattr(interface, name, None))]:
        meant = dict(near_misses(dir(interface), missing))
        raise UserError(
            f"{type(interface).__name__} has no {', '.join(f'{name}()' for name in missing)}: add "
            + ("it" if len(missing) == 1 else "them")
            + "".join(f" ({known}() is meant by {wrong}?)" for wrong, known in meant.items())
        )
