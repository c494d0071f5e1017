"""Pictures made smaller, and rays in them, by hand-computed ones."""

import gymnasium
import numpy as np
import pytest

from tfagents_system.envs.pictures import Rangefinder, SmallPictures, _shares, crop, grayscale, resize


def test_a_part_is_cut_out():
    picture = np.arange(24, dtype=np.uint8).reshape(4, 6, 1)
    np.testing.assert_array_equal(crop(picture, 1, 2, 2, 3)[..., 0], [[8, 9, 10], [14, 15, 16]])
    with pytest.raises(ValueError, match=r"2 x 5 at \(1, 2\) is not within a picture of 4 x 6"):
        crop(picture, 1, 2, 2, 5)


def test_areas_become_their_means_and_parts_of_pixels_count_by_their_share():
    picture = np.array([[0, 10, 20, 30], [40, 50, 60, 70]], np.uint8)[..., None]
    np.testing.assert_array_equal(resize(picture, 1, 2)[..., 0], [[25, 45]])
    # Three pixels in two: 1.5 each.
    row = np.array([[30, 60, 90]], np.uint8)[..., None]
    np.testing.assert_array_equal(resize(row, 1, 2)[..., 0], [[40, 80]])
    np.testing.assert_array_equal(resize(picture, 2, 4), picture)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((120, 160, 3), (40, 40)), ((97, 101, 4), (13, 7)), ((64, 64, 1), (50, 37)), ((30, 40, 3), (64, 64))],
)
def test_a_small_picture_is_the_product_with_all_shares(shape, size):
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    rows, columns = (_shares(*each) for each in zip(shape[:2], size, strict=True))
    whole = np.einsum("hr,wc,rck->hwk", rows.astype(float), columns.astype(float), picture)
    assert np.abs(resize(picture, *size) - whole).max() <= 0.5001


def test_luminance():
    picture = np.array([[(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]], np.uint8)
    np.testing.assert_array_equal(grayscale(picture)[..., 0], [[76, 150, 29, 255]])


class Screen(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        screen=gymnasium.spaces.Box(0, 255, (6, 8, 3), np.uint8), speed=gymnasium.spaces.Box(-1, 1, (1,))
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return {"screen": np.full((6, 8, 3), 100, np.uint8), "speed": np.zeros(1, np.float32)}, {}


def test_an_environments_pictures():
    env = SmallPictures(Screen(), size=(2, 4), part=(2, 0, 4, 8), gray=True, key="screen")
    observation, _ = env.reset()
    assert env.observation_space["screen"].shape == observation["screen"].shape == (2, 4, 1)
    assert env.observation_space.contains(observation) and (observation["screen"] == 100).all()


def test_rays_end_at_the_first_dark_pixel_or_at_the_edge():
    picture = np.full((5, 7, 3), 200, np.uint8)
    finder = Rangefinder(5, 7, darkest=55, rays=3)
    np.testing.assert_array_equal(finder.measure(picture), [4, 5, 4])
    picture[1, 3] = 0  # Three pixels above the bottom centre (4, 3).
    picture[4, 5] = 54  # Two to the right.
    picture[4, 2] = (0, 0, 55)  # Not dark in all channels.
    np.testing.assert_array_equal(finder.measure(picture), [4, 3, 2])


def test_nineteen_rays_in_a_road():
    picture = np.full((40, 41), 200, np.uint8)
    picture[:, :10] = picture[:, 31:] = 0  # Dark beside the road, 11 pixels from the middle column 20.
    metres = Rangefinder(40, 41).measure(picture)
    assert metres.shape == (19,) and metres.dtype == np.float32
    assert metres[0] == metres[-1] == 11 and metres[9] == 40
    np.testing.assert_array_equal(metres, metres[::-1])
    assert metres[3] == np.ceil(10.5 / np.cos(np.radians(30)))
    with pytest.raises(ValueError, match="expected a picture"):
        Rangefinder(40, 41).measure(picture[:20])
