"""Data sets that are no experience for the environment are refused with the reason; what only looks so is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.data_sets import EPISODES, columns, episode, imported
from tfagents_system.errors import UserError
from tfagents_system.experience import data_sets
from tfagents_system.experience.transfer import episodes_of


def changed(**arrays: Any) -> Any:
    return lambda data: {name: each for name, each in (data | arrays).items() if each is not None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(rewards=np.full(13, np.nan)), "the rewards of episode 0 have 5 numbers that are not finite"),
        (
            changed(rewards=np.full(13, -1e39)),
            r"the rewards of episode 0 have 5 numbers that float32 can't hold, such as -1e\+39: scale them, or remove",
        ),
        (changed(terminals=np.zeros(13)), "has terminations and terminals, which mean the same: remove one of them"),
        (changed(actions=np.zeros((13, 2))), r"episode 0: action has the shape \[5, 2\], this needs \[5, 1\]"),
        (changed(rewards=None), "has no rewards: it has"),
        (
            changed(terminations=np.zeros(12)),
            r"different numbers of rows \(observations 13, .*terminations 12.*\): give each one row a step",
        ),
        (changed(next_observations=np.zeros((13, 2))), r"shape \[13, 3\], and next_observations \[13, 2\]"),
        (
            changed(terminations=np.zeros(13, bool), truncations=np.zeros(13, bool)),
            "next_observations of 2 rows, the first of row 4, are not the observations of the next row",
        ),
        (
            changed(observations=None, next_observations=None, **{"observations/camera": np.zeros((13, 3))}),
            r"episode 0 has no observation \(one array\): it has 'camera'",
        ),
        (
            changed(terminations=np.where(np.arange(13) % 2, np.nan, 0.0)),
            r"terminations must be 0 or 1 \(false or true\) in each row, 6 are not, such as nan: correct them",
        ),
        (changed(truncations=np.full(13, "False")), "truncations must be 0 or 1 .*, 13 are not, such as False"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, files: dict[str, str], change: Any, message: str
) -> None:
    np.savez(tmp_path / "other.npz", **change(columns(tmp_path)))
    with pytest.raises(UserError, match=message):
        imported(str(tmp_path / "other.npz"), tmp_path / "imported", files)
    assert not [path for path in tmp_path.iterdir() if "imported" in path.name]


ENDS: dict[str, np.ndarray] = {"rewards": np.zeros(5), "terminations": np.arange(5) == 4}
TWO_PARTS = """
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase


class Parts(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {
            "arm": gymnasium.spaces.Box(-1, 1, (3,)),
            "camera": gymnasium.spaces.Box(0, 255, (4, 4, 1), np.uint8),
            "place": gymnasium.spaces.Box(-1, 1, (2,)),
        }
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        return {name: np.zeros(space.shape, space.dtype) for name, space in self.observation_space.items()}, {}


class TrainParams(TrainParamsBase):
    def env_ctor(self, *args, seed=None, **kwargs):
        return Parts()
"""


def test_all_that_differs_is_told_at_once(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "my_params.py").write_text(TWO_PARTS)
    seen = {"observations/arm": np.zeros((5, 4)), "observations/camera": np.zeros((5, 4, 4, 1))}
    seen |= {f"next_{name}": leaf for name, leaf in seen.items()}
    np.savez(tmp_path / "other.npz", **(ENDS | seen | {"rewards": np.full(5, np.nan), "actions": np.zeros((5, 3))}))
    with pytest.raises(UserError) as error:
        imported(str(tmp_path / "other.npz"), tmp_path / "imported", files)
    assert list(error.value.findings) == [
        "episode 0: observation/arm has the shape [6, 4], this needs [6, 3]",
        "episode 0: observation/camera is float64, this needs uint8: convert it",
        "episode 0 has no observation place: it has 'arm', 'camera', the environment's leaf is "
        "observation/place: rename the array",
        "episode 0: action has the shape [5, 3], this needs [5, 2]",
        "the rewards of episode 0 have 5 numbers that are not finite (NaN or infinite): remove those episodes",
    ]


PICTURES = """
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase


class Pictures(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (4, 6, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (2, 3))

    def reset(self, *, seed=None, options=None):
        return np.zeros((4, 6, 3), np.uint8), {}


class TrainParams(TrainParamsBase):
    def env_ctor(self, *args, seed=None, **kwargs):
        return Pictures()
"""


@pytest.mark.parametrize(("shape", "of_actions"), [((4, 6, 3), (2, 3)), ((72,), (6,)), ((4, 1, 6, 3), (2, 3))])
def test_rows_may_be_flat_or_have_axes_of_size_1(
    tmp_path: Path, files: dict[str, str], shape: tuple[int, ...], of_actions: tuple[int, ...]
) -> None:
    """The environment's actions are flat for the agent, whatever their shape."""
    (tmp_path / "my_params.py").write_text(PICTURES)
    pictures = np.arange(5 * 72).reshape(5, 4, 6, 3).astype(np.uint8)
    actions = np.linspace(-1, 1, 30)
    rows = {"observations": pictures.reshape(5, *shape), "actions": actions.reshape(5, *of_actions)}
    np.savez(tmp_path / "data.npz", **(ENDS | rows))
    stored, _, _ = imported(str(tmp_path / "data.npz"), tmp_path / "imported", files)
    (episode,) = episodes_of(stored)
    np.testing.assert_array_equal(episode.observation[0][:-1], pictures)
    np.testing.assert_allclose(np.ravel(episode.action[0]), actions, atol=1e-6)


@pytest.mark.parametrize("order", [(3, 1, 2), (2, 1, 3)], ids=["channel first", "height and width exchanged"])
def test_axes_in_another_order_are_refused(tmp_path: Path, files: dict[str, str], order: tuple[int, ...]) -> None:
    """They have as many numbers, which would make scrambled pictures."""
    (tmp_path / "my_params.py").write_text(PICTURES)
    pictures = np.zeros((5, 4, 6, 3), np.uint8).transpose(0, *order)
    np.savez(tmp_path / "data.npz", **(ENDS | {"observations": pictures, "actions": np.zeros((5, 6))}))
    shape = ", ".join(map(str, pictures.shape[1:]))
    told = rf"has the shape \[6, {shape}\], this needs \[6, 4, 6, 3\]: bring its axes into this order"
    with pytest.raises(UserError, match=told):
        imported(str(tmp_path / "data.npz"), tmp_path / "imported", files)


def test_integers_beyond_those_of_the_environment_are_refused(tmp_path: Path, files: dict[str, str]) -> None:
    """256 would become 0 without a word."""
    (tmp_path / "my_params.py").write_text(TWO_PARTS)
    pixels = np.full((5, 4, 4, 1), 255, np.uint16)
    place = np.zeros((5, 2))
    seen = {"observations/arm": np.zeros((5, 3)), "observations/camera": pixels, "observations/place": place}
    data: dict[str, Any] = ENDS | seen | {"actions": place}
    np.savez(tmp_path / "data.npz", **data)
    stored, _, _ = imported(str(tmp_path / "data.npz"), tmp_path / "imported", files)
    camera = next(episodes_of(stored)).observation[1]
    assert camera.dtype == np.uint8 and (camera == 255).all()
    pixels[1, 2, 3] = 256
    np.savez(tmp_path / "data.npz", **data)
    told = "camera of episode 0 have 1 numbers that uint8 can't hold, such as 256: scale them"
    with pytest.raises(UserError, match=told):
        imported(str(tmp_path / "data.npz"), tmp_path / "again", files)


def test_next_observations_may_differ_by_rounding_alone(tmp_path: Path, files: dict[str, str]) -> None:
    data = columns(tmp_path, episode(30, 1, True))
    seen = data["next_observations"].astype(np.float64) * (1 + 1e-7)
    np.savez(tmp_path / "rounded.npz", **(data | {"next_observations": seen}))
    assert "30 steps" in imported(str(tmp_path / "rounded.npz"), tmp_path / "imported", files)[1][0]
    seen[7, 1] += 0.01
    np.savez(tmp_path / "other.npz", **(data | {"next_observations": seen}))
    with pytest.raises(UserError, match="of 1 rows, the first of row 7,"):
        imported(str(tmp_path / "other.npz"), tmp_path / "imported_2", files)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    data_sets.write_npz(path, EPISODES)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b"no zip"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="can't be read"):
            list(data_sets.read_npz(path, lambda text: None))


def test_sources_that_are_not_here_or_of_other_kinds_have_a_remedy(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    (tmp_path / "data.csv").write_text("")
    for source, message in (
        ("minari:mujoco/hopper-v0", "not on this machine: get it with `minari download mujoco/hopper-v0`"),
        ("demos:mine", "SOURCE=demos:mine does not exist .looked for"),
        (str(tmp_path / "data.csv"), "no known format"),
    ):
        with pytest.raises(UserError, match=message):
            imported(source, tmp_path / "imported", files)
