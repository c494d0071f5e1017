"""A checkpoint brings back agent, optimizers and counters; it waits for the replay server, or continues without."""

from __future__ import annotations

import math
import shutil
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.support.agent_for_tests import B, Params, block, build, build_quiet
from tests.support.checkpoints_for_tests import checkpoints_of
from tests.support.ports import free_port
from tests.support.replay_service import Server
from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import numbered_segment
from tests.support.settings_for_tests import variables_with
from tests.support.waiting import until
from tfagents_system import sac_train
from tfagents_system.agents.agent import set_fixed_alpha
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.replay.ring import COUNTED_ITERATIONS, parse_header
from tfagents_system.replay.sampling import TransitionForm
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.run_files.kept_checkpoints import DamagedCheckpointError
from tfagents_system.trainer import trainer
from tfagents_system.trainer import trainer_checkpoints as checkpoints_module
from tfagents_system.trainer.iteration_plan import IterationPlan, TrainerState
from tfagents_system.trainer.trainer_checkpoints import SaveError, TrainerCheckpoints, TrainerSaves
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError


def test_going_on_from_a_checkpoint_is_going_on_without_a_stop_bit_by_bit(tmp_path):
    agent, state = build(), TrainerState(4, 900, {"checkpoint": "policy_checkpoint_0000000003", "eval_return": -1.5}, 1)
    checkpoints, asked = checkpoints_of(tmp_path, agent, state)
    assert checkpoints.restore() is None
    update = BlockUpdate(agent, B, TransitionForm(), seed=5)
    update(block(3))
    checkpoints.save(5.0, wait=True)
    update(block(4, seed=1))

    other, other_state = build(), TrainerState()
    found = checkpoints_of(tmp_path, other, other_state)[0].restore()
    assert (found.train_step, found.iteration, found.has_replay) == (3, 4, True)
    assert asked == [found.name]
    assert int(other.train_step_counter) == 3
    assert other_state == state
    BlockUpdate(other, B, TransitionForm(), seed=5)(block(4, seed=1))
    assert int(other.critic_optimizer.iterations) == 7, "3 from the checkpoint and 4 more"
    for ours, theirs in zip(agent.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for a, b in zip(agent.critics[0].variables, other.critics[0].variables, strict=True):
        moments = [agent_.get_slot(v, "m") for agent_, v in ((agent.critic_optimizer, a), (other.critic_optimizer, b))]
        np.testing.assert_array_equal(*moments)


def test_no_agent_begins_anew_where_the_run_has_lost_its_checkpoints(tmp_path):
    agent, folder, record = build(), tmp_path / "checkpoints", tmp_path / "saved.json"
    checkpoints, _ = checkpoints_of(folder, agent, record=record)
    assert checkpoints.restore() is None
    checkpoints.save(5.0, wait=True)
    shutil.rmtree(folder)
    assert checkpoints_of(folder, agent, record=record)[0].restore() is None, "it was at 0"
    agent.train_step_counter.assign_add(10)
    checkpoints.save(5.0, wait=True)
    index = folder / "checkpoint_0000000010" / "agent.index"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(UserError, match="after 10 updates in .*, and all 1 in it are damaged: put back"):
        checkpoints_of(folder, agent, record=record)[0].restore()
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="after 10 updates in .*, and there is none in it: put back"):
        checkpoints_of(folder, agent, record=record)[0].restore()


def test_without_an_answer_of_the_replay_server_it_is_complete_without_its_part(tmp_path, monkeypatch):
    now, looks = [100.0], []

    def monotonic():
        looks.append(now[0])
        return now[0] if len(looks) < 5000 else math.inf  # A `save` that waits ends, and fails.

    monkeypatch.setattr(checkpoints_module, "time", types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    checkpoints, asked = checkpoints_of(tmp_path, build(), answer=False)
    checkpoints.save(1.5, wait=False)
    for secs in (0.0, 1.25):
        now[0] += secs
        until(lambda: looks.count(now[0]) > 1, 20.0, "a look for its part")
        assert checkpoints._finishing.is_alive(), "training does not wait for it"
        assert kept_checkpoints.newest_complete(tmp_path) is None
    now[0] += 0.25
    checkpoints.wait()
    found = kept_checkpoints.newest_complete(tmp_path)
    assert asked == [found.name]
    assert not found.has_replay


def test_a_checkpoint_that_cant_be_written_is_an_error_and_the_one_before_it_stays(tmp_path):
    agent = build()
    checkpoints, _ = checkpoints_of(tmp_path / "there", agent)
    checkpoints.save(5.0, wait=True)
    before = kept_checkpoints.newest_complete(tmp_path / "there")
    agent.train_step_counter.assign_add(1)
    (tmp_path / "there" / "checkpoint_0000000001.partial").write_text("a file is in the way")
    with pytest.raises(SaveError, match="can't be written"):
        checkpoints.save(5.0, wait=True)
    assert kept_checkpoints.newest_complete(tmp_path / "there") == before


def test_an_error_while_it_is_completed_is_raised_by_the_next_save(tmp_path, monkeypatch):
    checkpoints, _ = checkpoints_of(tmp_path, build())

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(kept_checkpoints, "finish", full)
        checkpoints.save(5.0, wait=False)
        with pytest.raises(SaveError, match="No space left on device"):
            checkpoints.save(5.0, wait=True)
    checkpoints.save(5.0, wait=True)
    assert kept_checkpoints.newest_complete(tmp_path) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"algorithm": "redq", "num_critics": 3}),
        ({}, {"critic_joint_fc_layer_params": (17,)}),
        ({}, {"normalize_observations": True}),
    ],
)
def test_a_checkpoint_of_another_agent_is_refused_in_words(tmp_path, before, after):
    checkpoints_of(tmp_path, build(**before))[0].save(5.0, wait=True)
    with pytest.raises(
        UserError, match=r"TrainParams have different agents \(.* and .*\): .*choose another SAC_EXP_NAME"
    ):
        checkpoints_of(tmp_path, build(**after))[0].restore()


def test_an_alpha_that_is_fixed_is_that_of_the_params_not_of_the_checkpoint(tmp_path):
    checkpoints_of(tmp_path, build(sac_log_alpha=-2.0))[0].save(5.0, wait=True)
    for learns, expected in ((False, 0.5), (True, -2.0)):
        params = type("Params", (Params,), {"sac_log_alpha": 0.5, "learn_entropy_coef": learns})({"horizon": 10})
        agent = build(sac_log_alpha=params.sac_log_alpha, learn_entropy_coef=learns)
        checkpoints_of(tmp_path, agent)[0].restore()
        set_fixed_alpha(agent, params)
        assert float(agent.log_alpha) == expected


# Checkpoints are never so many iterations apart that the ring has forgotten how many steps each of them had.


STEPS = 25


def saved_iterations(resumed_at: int, env_steps_per_iter: int | None) -> list[int]:
    """Iterations of 25 steps with a checkpoint's period of 50,000 steps: after which a checkpoint is written."""
    params: Any = SimpleNamespace(
        num_iter=10_000,
        asynchronous=False,
        env_steps_per_iter=env_steps_per_iter,
        updates_per_env_step=None,
        updates_per_iter=1000,
        checkpoint_period_iters=1,
        checkpoint_period_env_steps=50_000,
        num_eval_episodes=0,
        keep_policies=True,
    )
    state, saved = TrainerState(iteration=resumed_at), list[int]()
    state.env_steps = state.end_env_steps = STEPS * resumed_at
    plan = IterationPlan(state, lambda: state.iteration * STEPS, params.num_iter, None)
    checkpoints: Any = MagicMock()
    checkpoints.is_wanted.return_value = False
    checkpoints.save.side_effect = lambda *args, **options: saved.append(state.iteration)
    learner: Any = SimpleNamespace(state=state, checkpoints=checkpoints, train_step=0)
    role: Any = SimpleNamespace(params=params, variables=variables_with())
    saves = TrainerSaves(role, learner, plan, MagicMock(), TimeShares())
    saves.begin(restored=resumed_at > 0)
    while state.iteration < resumed_at + 1900:
        state.env_steps += STEPS
        plan.end()
        learner.train_step = STEPS * state.iteration
        if saves.is_due():
            assert saves.save()
    return saved


@pytest.mark.parametrize("resumed_at", [0, 130])
def test_the_older_of_two_checkpoints_is_among_the_iterations_that_are_counted(resumed_at: int) -> None:
    saved = [resumed_at, *saved_iterations(resumed_at, STEPS)]
    apart = [later - earlier for earlier, later in zip(saved, saved[2:], strict=False)]
    assert len(saved) > 4 and max(apart) < COUNTED_ITERATIONS


def test_where_an_iteration_has_its_own_number_of_updates_the_period_alone_counts() -> None:
    assert saved_iterations(0, None) == []


# Sessions.


def test_a_session_is_above_all_others_wherever_the_clock_is_and_whatever_is_remembered(tmp_path, monkeypatch):
    def next_session(last, clock, path=tmp_path / "trainer_session.json"):
        monkeypatch.setattr(trainer, "time", types.SimpleNamespace(time_ns=lambda: clock))
        return trainer.next_session(path, last)

    assert [next_session(0, 1000), next_session(0, 10), next_session(1001, 10)] == [1000, 1001, 1002]
    assert next_session(1002, 5000) == 5000
    for text in ("", "[]", '{"session": "x"}', "{}"):
        (tmp_path / "trainer_session.json").write_text(text)
        assert next_session(0, 7) == 7
    (tmp_path / "file").write_text("")
    assert next_session(8, 7, tmp_path / "file" / "session.json") == 9, "it can't be written"


# A trainer with a run directory of its own: its agent is saved there, the header of the ring beside the ring.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "there" / "ring", free_port())
    yield server
    server.close()


def store(server: Server, number: int) -> None:
    server.connection.put(tables.SEGMENTS, numbered_segment(number=number, steps=10, iteration=0).to_wire())
    server.turn_until(lambda: server.ring.env_steps == 10 * (number + 1))


def while_turning(server: Server, work: Any) -> None:
    """Does the trainer's work in a thread, as it is another process, while the server turns."""
    thread = threading.Thread(target=work)
    thread.start()
    server.turn_until(lambda: not thread.is_alive(), 30.0)


def checkpoints_here(server: Server, folder: Path) -> TrainerCheckpoints:
    agent = build_quiet()
    state, train_step = TrainerState(iteration=3), agent.train_step_counter
    return TrainerCheckpoints(folder, agent, state, train_step, server.connection, is_far=True)


def env_steps_of(server: Server, name: str) -> int:
    """Of the ring, as a checkpoint beside it has them, once it is complete."""
    server.turn_until((server.checkpoints / name).is_dir)
    content = kept_checkpoints.read(server.checkpoints / name).replay.read_bytes()
    return int(parse_header(content)["env_steps"])


def test_its_agent_is_here_and_the_header_of_the_ring_is_in_a_checkpoint_of_the_same_name_there(
    tmp_path: Path, server: Server
) -> None:
    here = tmp_path / "here" / "checkpoints"
    here.parent.mkdir()
    checkpoints = checkpoints_here(server, here)
    store(server, 0)
    while_turning(server, lambda: checkpoints.save(20.0, wait=True))
    ours = kept_checkpoints.newest_complete(here)
    assert ours is not None and ours.has_agent and not ours.has_replay
    assert env_steps_of(server, ours.name) == 10
    theirs = kept_checkpoints.newest_complete(server.checkpoints)
    assert theirs is not None and theirs.has_replay and not theirs.has_agent
    assert kept_checkpoints.newest_complete(server.checkpoints, with_agent=True) is None, "no trainer resumes from it"

    store(server, 1)
    while_turning(server, lambda: checkpoints.save(20.0, wait=True))
    again = kept_checkpoints.newest_complete(here)
    assert again is not None and again.name != ours.name, "a second one of the same train step"
    assert env_steps_of(server, again.name) == 20

    new = checkpoints_here(server, tmp_path / "new")  # Of a trainer that has lost its directory.
    store(server, 2)
    while_turning(server, lambda: new.save(20.0, wait=True))
    server.turn_until(lambda: server.snapshots.written == 3)
    assert env_steps_of(server, ours.name) == 30, "the name that the lost one had, too"


def test_it_asks_again_where_the_server_did_not_get_it(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_put, tries = server.connection.try_put, list[str]()

    def lose_first(table: str, *arguments: Any) -> bool:
        tries.append(table)
        return len(tries) > 1 and try_put(table, *arguments)

    checkpoints = checkpoints_here(server, tmp_path / "here")
    store(server, 0)
    monkeypatch.setattr(server.connection, "try_put", lose_first)
    monkeypatch.setattr(checkpoints_module, "_ASK_AGAIN_SECS", 0.1)
    while_turning(server, lambda: checkpoints.save(20.0, wait=True))
    ours = kept_checkpoints.newest_complete(tmp_path / "here")
    assert tries == [tables.SNAPSHOTS] * 2 and ours is not None and env_steps_of(server, ours.name) == 10


def test_it_does_not_wait_for_a_server_that_has_ended(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_module, "_ASK_AGAIN_SECS", 0.1)
    checkpoints, is_gone = checkpoints_here(server, tmp_path / "here"), iter([False, True])
    checkpoints._is_far = False
    checkpoints.is_server_gone = lambda: next(is_gone)
    began = time.monotonic()
    checkpoints.save(60.0, wait=True)
    assert 0.1 < time.monotonic() - began < 20.0, "it asked once, and looked again later"
    ours = kept_checkpoints.newest_complete(tmp_path / "here")
    assert ours is not None and ours.has_agent and not ours.has_replay


def test_it_saves_before_it_ends_for_an_agent_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class Replaced:
        def __init__(self, role: Any) -> None:
            del role

        def run(self) -> None:
            raise StoppedError

        def __getattr__(self, name: str) -> Any:
            return lambda: did.append(name)

    def refuse() -> None:
        raise UserError("the run has begun anew")

    monkeypatch.setattr(sac_train, "Trainer", Replaced)
    joined = types.SimpleNamespace(check=refuse, leave=lambda: did.append("leave"))
    with pytest.raises(UserError, match="begun anew"):
        sac_train.train(types.SimpleNamespace(joined=joined, is_far=True))  # type: ignore[arg-type]
    assert did == ["stop", "close", "leave"]
    joined.check = lambda: None
    role = types.SimpleNamespace(joined=joined, is_far=True)
    assert sac_train.train(role) == EXIT_RESUMABLE  # type: ignore[arg-type]


def test_two_are_kept_and_names_of_something_else_and_moved_directories_are_refused(tmp_path: Path) -> None:
    run = RunFolders(tmp_path / "run")
    run.ring.extend([numbered_segment(number=0, steps=10, iteration=0)])

    def take(train_step: int) -> None:
        written = run.snapshots.written
        assert run.snapshots.take(f"checkpoint_{train_step:010d}", is_far=True)
        until(lambda: run.snapshots.written > written, 20.0, "a checkpoint")

    for train_step in (10, 20, 30):
        take(train_step)
    names = sorted(path.name for path in run.checkpoints.iterdir())
    assert names == ["checkpoint_0000000020", "checkpoint_0000000030"]
    take(5)  # A trainer that has lost its run directory begins anew.
    assert [path.name for path in run.checkpoints.iterdir()] == ["checkpoint_0000000005"]
    with pytest.raises(ValueError, match="'elsewhere' is no name of a checkpoint"):
        run.snapshots.take("elsewhere", is_far=True)
    home = run.checkpoints.parent
    moved = home.rename(home.with_name("moved"))
    assert not run.snapshots.take("checkpoint_0000000040", is_far=True), "the server continues"
    assert not home.exists(), "and it may be put back"
    assert "checkpoint_0000000040: [Errno 2]" in str(run.snapshots.error)
    moved.rename(home)
    run.checkpoints.rename(home / "kept")
    run.checkpoints.write_bytes(b"")  # Nothing can be made there, as on a disk that is read-only.
    assert not run.snapshots.take("checkpoint_0000000040", is_far=True)
    run.checkpoints.unlink()
    (home / "kept").rename(run.checkpoints)
    take(40)
    assert run.snapshots.error is None


def test_a_checkpoint_that_lost_its_agent_is_damaged(tmp_path: Path) -> None:
    partial = kept_checkpoints.begin(tmp_path, 10)
    (partial / "replay.bin").write_bytes(b"rows")
    folder = kept_checkpoints.finish(partial, 10, 1, {}).folder
    with pytest.raises(DamagedCheckpointError, match="it has no agent"):
        kept_checkpoints.read(folder)
