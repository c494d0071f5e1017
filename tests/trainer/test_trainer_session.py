"""Sessions of a trainer only grow, whatever the clock says."""

from tfagents_system.trainer.trainer import next_session


def test_a_clock_that_was_set_back_is_no_reason_to_be_ignored(tmp_path):
    path = tmp_path / "trainer_session.json"
    first = next_session(path, 0, lambda: 1000)
    restarted = next_session(path, 0, lambda: 10)
    gone_back = next_session(path, restarted, lambda: 10)
    assert (first, restarted, gone_back) == (1000, 1001, 1002)
    assert next_session(path, gone_back, lambda: 5000) == 5000


def test_what_is_remembered_may_be_missing_damaged_or_not_writable(tmp_path):
    path = tmp_path / "trainer_session.json"
    for text in ("", "[]", '{"session": "x"}', "{}"):
        path.write_text(text)
        assert next_session(path, 0, lambda: 7) == 7
    (tmp_path / "file").write_text("")
    assert next_session(tmp_path / "file" / "session.json", 8, lambda: 7) == 9
