"""Params and JSON for which data sets are imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.data_sets import PARAMS


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "my_params.py").write_text(PARAMS)
    (tmp_path / "my.json").write_text('{"horizon": 20}')
    return {"params": str(tmp_path / "my_params.py"), "config": str(tmp_path / "my.json")}
