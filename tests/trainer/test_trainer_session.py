"""Sessions of a trainer only grow, whatever the clock says."""

import types

from tfagents_system.trainer import trainer


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
