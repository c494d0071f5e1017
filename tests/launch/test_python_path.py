"""The repository's own modules come before the user's, and what the user had stays."""

import pytest

from tfagents_system.launch.python_path import ROOT, folders_of_python_path, run_python_path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, [ROOT]),
        ({"PYTHONPATH": ""}, [ROOT]),
        ({"PYTHONPATH": "/mine:/other"}, [ROOT, "/mine", "/other"]),
        ({"PYTHONPATH": f"/mine:{ROOT}:/mine"}, [ROOT, "/mine"]),
    ],
)
def test_the_repository_leads_and_every_folder_is_there_once(before, after):
    assert run_python_path(before) == ":".join(map(str, after))
    assert run_python_path({"PYTHONPATH": run_python_path(before)}) == ":".join(map(str, after))


def test_the_users_folder_comes_last_and_empty_entries_are_no_folders():
    assert folders_of_python_path({"PYTHONPATH": ":/mine::"}) == ["/mine"]
    assert run_python_path({"PYTHONPATH": ":/mine::"}, "/here", "/mine") == f"{ROOT}:/mine:/here"
