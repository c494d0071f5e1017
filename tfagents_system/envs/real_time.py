"""RealTimeEnvironment: a device that does not wait, with steps of an elastic clock, as in rtgym (RealTimeEnv).

    time step          |<- time_step_duration ->|
    sent               a_(t-1)                  a_t                      a_(t+1)
    captured           |<- start_obs_capture ->|o_t
    step(a_t)              |<- waits ---------->| returns o_t, observed under a_(t-1)

An action thus acts while the next one is computed: action_history gives the policy the actions that are still to act.
docs/tutorials/real_robot.md shows how to connect a device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium

from tfagents_system.checks.rules import near_misses
from tfagents_system.envs.clocks import Call, Clock, MonotonicClock
from tfagents_system.envs.layers import options_of_evaluation
from tfagents_system.envs.step_times import (
    INFERENCE,
    JOIN,
    RETRIEVE_OBS,
    SEND_CONTROL,
    SEND_DELAY,
    STEP,
    TIME_STEP,
    StepTimes,
    check_time_step,
    metrics_of,
)
from tfagents_system.errors import UserError

_LOG = logging.getLogger(__name__)
_REQUIRED = (
    "send_control",
    "get_obs_rew_terminated_info",
    "reset",
    "get_observation_space",
    "get_action_space",
    "get_default_action",
)
_TELL_SECS = 10.0  # Between two warnings of late steps.


class Interface(Protocol):
    """A device, as rtgym's RealTimeGymInterface has it; it need not derive from anything.

    Optional: `wait()` lets it rest until the next reset or action, `render()` returns a picture, `set_state(dict)` sets
    parameters, `close()` frees it.
    """

    def send_control(self, control: Any) -> None:
        """Lets an action act from now on. Must not wait for it."""

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        """What is observed now, the reward since the last call, whether the episode is over, and further information.

        It may be called in another thread than the rest, while the policy computes an action.
        """

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, however long that takes; returns its first observation, and information.

        Where it is of an evaluation, `options` is `{"evaluation": True, "episode": 3}`: its episodes count from 0.
        """

    def get_observation_space(self) -> Any: ...

    def get_action_space(self) -> Any: ...

    def get_default_action(self) -> Any:
        """What acts until the policy's first action; harmless."""


class RealTimeEnvironment(gymnasium.Env):
    """Steps of a device at its own pace, with Gymnasium's interface.

    `step(a_t)` waits for the end of the running time step, returns what was captured `start_obs_capture` after that has
    begun, and sends a_t. The next time step begins where the last one ended, if a_t was sent within
    `time_step_timeout_factor` time steps after that, else when it was sent: such a step is late. `reset()` sends the
    default action. After an episode has ended nothing is sent.

    Args:
      interface: The device.
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
      is_evaluation: Episodes from the next reset on are of an evaluation, of which the device's `reset` is told.
      late_steps: How many there were.
      times: Durations of its steps.
      time_step_start: When the running time step has begun, by the clock.

    Raises:
      UserError: A time step is impossible, or the device lacks a method.
    """

    real_time = True

    def __init__(
        self,
        interface: Interface,
        time_step_duration: float = 0.05,
        start_obs_capture: float | None = None,
        time_step_timeout_factor: float = 1.0,
        wait_on_done: bool = False,
        clock: Clock | None = None,
        ep_max_length: int | None = None,
    ) -> None:
        capture = time_step_duration if start_obs_capture is None else start_obs_capture
        _check_methods(interface)
        check_time_step(time_step_duration, capture, time_step_timeout_factor)
        self.interface: Any = interface
        self.ep_max_length = ep_max_length
        self.is_evaluation = False
        self._evaluation_episode: int | None = None
        self.late_steps = self._told_late = 0
        self.times = StepTimes()
        self.time_step_start = 0.0
        self.render_mode = "rgb_array" if hasattr(interface, "render") else None
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, round(1.0 / time_step_duration))}
        self.observation_space = interface.get_observation_space()
        self.action_space = interface.get_action_space()
        self.time_step_duration, self._capture_secs = time_step_duration, capture
        self._elasticity = time_step_timeout_factor * time_step_duration
        self._wait_on_done = wait_on_done
        self._clock: Clock = clock or MonotonicClock()
        self.has_real_clock = self._clock.is_real
        self._end: float | None = None  # Of the running time step.
        self._capture: Call | None = None
        self._one_at_a_time = threading.Lock()  # A picture may be drawn while an observation is captured.
        self._has_begun = self._is_running = self._is_waiting = False
        self._steps = 0
        self._sent_at: float | None = None
        self._returned_at = 0.0
        self._tell_at = float("-inf")

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
        options = options_of_evaluation(options, self.is_evaluation, self._evaluation_episode)
        self._evaluation_episode = None
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
            self.times.add[INFERENCE](began - self._returned_at)
        observation, reward, terminated, info = self._finish_time_step()
        self.times.add[JOIN](self._clock.now() - began)
        self._steps += 1
        truncated = not terminated and self.ep_max_length is not None and self._steps >= self.ep_max_length
        if terminated or truncated:
            self._is_running, self._sent_at = False, None
            if self._wait_on_done:
                self.wait()
        else:
            self._send(action, may_be_late=True)
        self._returned_at = self._clock.now()
        self.times.add[STEP](self._returned_at - began)
        return _as_space(observation), reward, terminated, truncated, info

    def set_evaluation_episode(self, number: int) -> None:
        """Which of an evaluation's episodes the next reset begins, from 0: the device's `reset` is told."""
        self._evaluation_episode = number

    def take_metrics(self) -> dict[str, float]:
        """Of the steps since the last call: `late_steps`, `step_ms_p99` and `inference_ms_p99`; see `metrics_of`."""
        late, self._told_late = self.late_steps - self._told_late, self.late_steps
        return metrics_of(self.times.take(), late)

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
        self.times.add[SEND_CONTROL](now - began)
        assert self._end is not None
        if self._sent_at is not None:
            self.times.add[TIME_STEP](began - self._sent_at)
            self.times.add[SEND_DELAY](began - self._end)
        self._sent_at = began
        is_late = now >= self._end + self._elasticity
        if is_late and may_be_late and not self._is_waiting:
            self._tell_late(now)
        self._is_waiting = False
        self.time_step_start = now if is_late else self._end
        self._end = self.time_step_start + self.time_step_duration
        self._capture = self._clock.call_at(self.time_step_start + self._capture_secs, self._retrieve)

    def _finish_time_step(self) -> Any:
        """Waits for the capture and for the time step's end; returns what was captured."""
        assert self._capture is not None and self._end is not None
        capture, self._capture = self._capture, None
        captured = capture.result()
        self._clock.sleep_until(self._end)
        return captured

    def _let_time_step_end(self) -> None:
        """Waits for the end of the running time step: the device does one thing at a time. The next step returns its
        observation, or raises what that has raised; a reset forgets it.
        """
        if self._capture is not None:
            try:
                self._capture.result()
            except Exception as error:
                _LOG.warning("the observation of a time step that was not waited for has failed: %r", error)
            assert self._end is not None
            self._clock.sleep_until(self._end)

    def _retrieve(self) -> Any:
        began = self._clock.now()
        with self._one_at_a_time:
            captured = self.interface.get_obs_rew_terminated_info()
        self.times.add[RETRIEVE_OBS](self._clock.now() - began)
        return captured

    def _tell_late(self, now: float) -> None:
        assert self._end is not None
        self.late_steps += 1
        if now >= self._tell_at:
            self._tell_at = now + _TELL_SECS
            _LOG.warning(
                "step %d of the episode is late: its action was sent %.1f ms after the time step before it had ended, "
                "which may be %.1f; %d late steps so far",
                *(self._steps, 1e3 * (now - self._end), 1e3 * self._elasticity, self.late_steps),
            )


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
