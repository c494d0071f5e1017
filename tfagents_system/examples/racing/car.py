"""A car as a bicycle: slip, friction circle and engine power at speed, no slip below 1 m/s.

The equations are those of Rajamani, "Vehicle Dynamics and Control", chapter 2 (dynamic) and section 2.2 (kinematic),
with tyres that are linear up to the friction circle of their axle.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

SUBSTEP_SECS = 0.01
SUBSTEPS = 5
STEP_SECS = SUBSTEPS * SUBSTEP_SECS

WHEELBASE, FRONT_SHARE = 2.5, 0.5  # metres; share of the weight on the front axle
LENGTH, CAR_WIDTH = 3.8, 1.8  # metres
MAX_STEER = 0.5  # rad, of the front wheels
GRAVITY = 9.81
_STEER_RATE = 4.0  # rad/s
_FRONT_STIFFNESS, _REAR_STIFFNESS = 8.0, 10.0  # Sideways force for each radian of slip, as a share of the load.
_YAW_INERTIA = 1.3  # m^2, for each kg
_DRAG = 0.6  # N / (m/s)^2
_ROLLING = 0.15  # m/s^2
_GRASS_ROLLING = 3.0  # m/s^2
_GRASS_FRICTION = 0.6  # As a share of the road's.
_DRIVE, _BRAKE = 0.6, 0.9  # Full pedals on all four wheels, as a share of the grip; they never spin or lock.
_SLOW = 1.0  # m/s, below which the car does not slip
_TO_FRONT = WHEELBASE * (1.0 - FRONT_SHARE)  # metres from the centre of mass to the axles
_TO_REAR = WHEELBASE * FRONT_SHARE


class CarState(NamedTuple):
    """Where a car is, and how it moves.

    Attributes:
      x, y: metres, of the centre of mass.
      heading: rad, counterclockwise from the x axis; not wrapped.
      forward, sideways: Speed in the car's frame, m/s; sideways is positive to the left.
      yaw_rate: rad/s.
      steer: Angle of the front wheels, rad, positive to the left.
    """

    x: float
    y: float
    heading: float
    forward: float = 0.0
    sideways: float = 0.0
    yaw_rate: float = 0.0
    steer: float = 0.0

    @property
    def speed(self) -> float:
        """In m/s, forwards and sideways together."""
        return math.hypot(self.forward, self.sideways)


@dataclasses.dataclass
class CarParameters:
    """What a curriculum may set.

    Attributes:
      mass: kg.
      friction: Coefficient of the tyres on the road.
      power: W, of the engine.
    """

    mass: float = 800.0
    friction: float = 1.0
    power: float = 60_000.0


def advance(
    state: CarState, parameters: CarParameters, action: Sequence[float], on_grass: bool
) -> tuple[CarState, list[tuple[float, float]]]:
    """The state after one step of STEP_SECS, and x and y after each substep.

    Args:
      action: gas and brake, of which values below 0 press nothing, and steer, positive to the right: each in [-1, 1].
      on_grass: Grass has less grip, and slows the car down.
    """
    gas, brake, turn = action
    gas, brake, wanted = max(0.0, gas), max(0.0, brake), -MAX_STEER * turn
    grip = parameters.friction * (_GRASS_FRICTION if on_grass else 1.0) * GRAVITY
    rolling = _GRASS_ROLLING if on_grass else _ROLLING
    x, y, heading, forward, sideways, yaw_rate, steer = state
    path = []
    for _ in range(SUBSTEPS):
        change = wanted - steer
        most = _STEER_RATE * SUBSTEP_SECS
        steer += most if change > most else -most if change < -most else change
        drive = gas * min(parameters.power / (parameters.mass * max(forward, 1.0)), _DRIVE * grip)
        braking = brake * _BRAKE * grip
        resistance = braking + rolling + _DRAG * forward * forward / parameters.mass
        if forward < _SLOW:
            forward, sideways, yaw_rate = _slow(forward, drive - resistance, steer)
        else:
            forward, sideways, yaw_rate = _fast(
                forward, sideways, yaw_rate, steer, drive - resistance, drive - braking, grip
            )
        cos, sin = math.cos(heading), math.sin(heading)
        x += (forward * cos - sideways * sin) * SUBSTEP_SECS
        y += (forward * sin + sideways * cos) * SUBSTEP_SECS
        heading += yaw_rate * SUBSTEP_SECS
        path.append((x, y))
    return CarState(x, y, heading, forward, sideways, yaw_rate, steer), path


def _slow(forward: float, acceleration: float, steer: float) -> tuple[float, float, float]:
    """The wheels roll where they point; the car stands rather than rolls back."""
    forward = max(0.0, forward + acceleration * SUBSTEP_SECS)
    yaw_rate = forward * math.tan(steer) / WHEELBASE
    return forward, yaw_rate * _TO_REAR, yaw_rate


def _fast(
    forward: float,
    sideways: float,
    yaw_rate: float,
    steer: float,
    acceleration: float,
    pedals: float,
    grip: float,
) -> tuple[float, float, float]:
    """Forces of the axles for each kg of the car; the grip that gas and brakes take is not left for turning.

    Args:
      acceleration: m/s^2 along the car, of gas, brakes and resistance.
      pedals: m/s^2 of gas and brakes, which the axles share as they share the weight.
      grip: m/s^2 that tyres can give at most.
    """
    # Of the friction circle, along^2 + across^2 <= grip^2, what the pedals leave.
    left = math.sqrt(max(0.0, grip * grip - pedals * pedals))
    front_most, rear_most = left * FRONT_SHARE, left * (1.0 - FRONT_SHARE)
    front_slip = steer - math.atan2(sideways + _TO_FRONT * yaw_rate, forward)
    rear_slip = -math.atan2(sideways - _TO_REAR * yaw_rate, forward)
    front = min(front_most, max(-front_most, _FRONT_STIFFNESS * GRAVITY * FRONT_SHARE * front_slip))
    rear = min(rear_most, max(-rear_most, _REAR_STIFFNESS * GRAVITY * (1.0 - FRONT_SHARE) * rear_slip))
    across = front * math.cos(steer)
    new_forward = forward + (acceleration - front * math.sin(steer) + sideways * yaw_rate) * SUBSTEP_SECS
    new_sideways = sideways + (across + rear - forward * yaw_rate) * SUBSTEP_SECS
    new_yaw_rate = yaw_rate + (_TO_FRONT * across - _TO_REAR * rear) / _YAW_INERTIA * SUBSTEP_SECS
    return max(0.0, new_forward), new_sideways, new_yaw_rate
