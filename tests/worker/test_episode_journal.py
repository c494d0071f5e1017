"""The journal of a worker's episodes: what is read is what was written, as far back as a checkpoint needs it."""

import os

import pytest

from tfagents_system.worker.collector import Cut, EpisodeJournal, EpisodeUnderWay, JournalError

EPISODE_ITERATIONS = 10  # Episode n begins in iteration 10 n.


def cut_of(iteration, steps=2):
    begun = iteration // EPISODE_ITERATIONS * EPISODE_ITERATIONS
    actions = bytes([iteration % 256]) * 4 * steps
    return Cut(iteration, begun + 1, EpisodeUnderWay(begun, begun, steps, actions, iteration, [b"1234"]))


@pytest.fixture
def place(tmp_path):
    return tmp_path / "journals" / "worker_0.journal"


def filled(place, iterations):
    journal = EpisodeJournal(place)
    for iteration in iterations:
        journal.append(cut_of(iteration))
    return journal


def iterations_of(place):
    return [cut.iteration for cut, _ in EpisodeJournal(place)._read()]


def test_an_episode_is_all_that_was_written_of_it_up_to_the_iteration(place):
    filled(place, range(27))
    cut, parts = EpisodeJournal(place).at(24)
    assert cut == cut_of(24)
    assert parts == [(iteration, cut_of(iteration).episode) for iteration in range(20, 25)]


def test_an_iteration_that_is_written_again_replaces_those_from_it_on(place):
    filled(place, range(8))
    filled(place, [5])
    assert iterations_of(place) == [0, 1, 2, 3, 4, 5]
    filled(place, [6, 7, 3])
    assert iterations_of(place) == [0, 1, 2, 3]


@pytest.mark.parametrize("lost", [1, 7, 8, 9, 40])
def test_what_was_being_written_when_the_process_was_killed_is_left_out(place, lost):
    filled(place, range(4))
    size = place.stat().st_size
    filled(place, [4])
    os.truncate(place, max(size + 1, place.stat().st_size - lost))
    assert iterations_of(place) == [0, 1, 2, 3]
    filled(place, [4, 5])
    assert iterations_of(place) == [0, 1, 2, 3, 4, 5]


def test_bytes_that_changed_are_not_read(place):
    filled(place, range(4))
    content = bytearray(place.read_bytes())
    content[-3] ^= 1
    place.write_bytes(content)
    assert iterations_of(place) == [0, 1, 2]
    with pytest.raises(JournalError, match="nothing of iteration 3"):
        EpisodeJournal(place).at(3)


def test_an_episode_of_which_something_is_missing_is_not_repeated(place):
    filled(place, [0, 1, 2, 4, 5])
    with pytest.raises(JournalError, match="not all of the episode that began in iteration 0"):
        EpisodeJournal(place).at(5)


def test_a_disk_that_is_full_ends_no_run(place, caplog):
    journal = filled(place, range(3))
    place.unlink()
    place.parent.rmdir()
    place.parent.write_text("in its place")
    journal.append(cut_of(3))
    assert "a restart may change the weights" in caplog.text
