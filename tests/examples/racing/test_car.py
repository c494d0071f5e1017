"""The car's equations, at hand-computed points."""

import math

import numpy as np
import pytest

from tfagents_system.examples.racing.car import GRAVITY, MAX_STEER, STEP_SECS, CarParameters, CarState, advance

ROAD, GRASS = False, True
CAR = CarParameters(mass=800.0, friction=1.0, power=60_000.0)


def drive(state, action, steps, parameters=CAR, on_grass=ROAD):
    for _ in range(steps):
        state, path = advance(state, parameters, action, on_grass)
        assert len(path) == 5 and path[-1] == (state.x, state.y)
    return state


def test_full_gas_from_a_standstill_has_six_tenths_of_the_grip():
    state = drive(CarState(0, 0, 0), (1.0, 0.0, 0.0), 1)
    assert state.forward == pytest.approx(STEP_SECS * (0.6 * GRAVITY - 0.15), rel=1e-3)
    # Five substeps of Euler: x is the sum of the speeds after each.
    assert state.x == pytest.approx(0.01 * 0.01 * (0.6 * GRAVITY - 0.15) * 15, rel=1e-3)
    assert (state.y, state.heading) == (0.0, 0.0)


def test_power_limits_the_acceleration_at_speed():
    state = drive(CarState(0, 0, 0, forward=20.0), (1.0, 0.0, 0.0), 1)
    acceleration = 60_000 / (800 * 20.0) - 0.15 - 0.6 * 20.0**2 / 800
    assert state.forward - 20.0 == pytest.approx(STEP_SECS * acceleration, rel=0.02)
    fastest = drive(state, (1.0, 0.0, 0.0), 3000).forward
    assert 0.6 * fastest**3 + 0.15 * 800 * fastest == pytest.approx(60_000, rel=1e-3)


def test_brakes_stop_and_never_reverse():
    state = drive(CarState(0, 0, 0, forward=10.0), (-1.0, 1.0, 0.0), 1)
    assert 10.0 - state.forward == pytest.approx(STEP_SECS * (0.9 * GRAVITY + 0.15 + 0.6 * 100 / 800), rel=0.01)
    state = drive(state, (-1.0, 1.0, 0.3), 60)
    assert (state.forward, state.sideways, state.yaw_rate) == (0.0, 0.0, 0.0)


def test_pedals_below_zero_press_nothing():
    assert drive(CarState(0, 0, 0, 5.0), (-1.0, -1.0, 0.0), 3) == drive(CarState(0, 0, 0, 5.0), (0.0, 0.0, 0.0), 3)


def test_below_one_metre_a_second_the_wheels_roll_where_they_point():
    state = CarState(0, 0, 0, forward=0.9, steer=MAX_STEER)
    state = drive(state, (0.0, 0.0, -1.0), 1)
    assert state.yaw_rate == pytest.approx(state.forward * math.tan(MAX_STEER) / 2.5)
    assert state.sideways == pytest.approx(state.yaw_rate * 1.25)


def test_steer_is_positive_to_the_right_and_has_a_rate():
    right = drive(CarState(0, 0, 0, forward=10.0), (0.0, 0.0, 1.0), 1)
    left = drive(CarState(0, 0, 0, forward=10.0), (0.0, 0.0, -1.0), 1)
    assert right.steer == pytest.approx(-0.2) and right.heading < 0.0 and right.y < 0.0
    assert (left.x, left.y, left.heading) == pytest.approx((right.x, -right.y, -right.heading))


def test_a_gentle_bend_has_the_radius_of_the_wheels_less_the_slip_of_the_tyres():
    """Steady state: steer = L / R + K v^2 / R, K = (1 / front stiffness - 1 / rear) / g for axles of equal load."""
    speed, state = 8.0, CarState(0, 0, 0, forward=8.0)
    for _ in range(100):
        state, _ = advance(state._replace(forward=speed), CAR, (0.1, 0.0, -0.1), ROAD)
    understeer = (1 / 8.0 - 1 / 10.0) / GRAVITY
    radius = (2.5 + understeer * speed**2) / (0.1 * MAX_STEER)
    assert speed / state.yaw_rate == pytest.approx(radius, rel=0.02)


@pytest.mark.parametrize(("friction", "on_grass", "grip"), [(1.0, ROAD, 1.0), (0.7, ROAD, 0.7), (1.0, GRASS, 0.6)])
def test_tyres_give_no_more_than_the_friction_circle(friction, on_grass, grip):
    rng = np.random.default_rng(0)
    parameters, state, most = CarParameters(friction=friction), CarState(0, 0, 0, forward=15.0), 0.0
    for _ in range(400):
        before = state
        state = drive(state, tuple(rng.choice([-1.0, 0.0, 1.0], 3)), 1, parameters, on_grass)
        if min(before.forward, state.forward) < 1.5:
            state = state._replace(forward=15.0, sideways=0.0, yaw_rate=0.0)
            continue

        def velocity(car):
            turn = complex(math.cos(car.heading), math.sin(car.heading))
            return complex(car.forward, car.sideways) * turn

        most = max(most, abs(velocity(state) - velocity(before)) / STEP_SECS)
    resistance = (3.0 if on_grass else 0.15) + 0.6 * 20.0**2 / 800
    # Steps of 10 ms in a turning frame add some percent.
    assert 0.8 * grip * GRAVITY < most < 1.1 * grip * GRAVITY + resistance


def test_braking_takes_grip_from_the_bend():
    turning = CarState(0, 0, 0, forward=20.0)
    coasting = drive(turning, (0.0, 0.0, 0.6), 6)
    braking = drive(turning, (0.0, 1.0, 0.6), 6)
    assert abs(braking.heading) < 0.75 * abs(coasting.heading)


def test_it_does_not_shake_itself_to_pieces_at_any_speed_mass_and_friction():
    rng = np.random.default_rng(1)
    for _ in range(40):
        parameters = CarParameters(rng.uniform(200, 5000), rng.uniform(0.1, 3.0), 10 ** rng.uniform(3, 6))
        state = drive(
            CarState(0, 0, 0, forward=rng.uniform(0, 40)), (0.2, 0.0, float(rng.uniform(-1, 1))), 200, parameters
        )
        assert all(math.isfinite(value) for value in state) and abs(state.yaw_rate) < 20.0
