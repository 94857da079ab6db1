import json

import numpy as np
import pytest

from slm_lab.lib import seeds


def test_same_path_same_seed():
    assert seeds.derive(7, "env", 3, "episode", 12) == seeds.derive(7, "env", 3, "episode", 12)
    assert seeds.derive(np.int64(7), np.int32(3)) == seeds.derive(7, 3)


def test_every_difference_in_the_path_makes_another_seed():
    paths = [
        (),
        (0,),
        (0, 0),
        (1,),
        ("0",),
        ("env",),
        ("env", 0),
        ("env", 1),
        (1, "env"),
        ("en", "v"),
        (2**32,),
        (2**40,),
    ]
    found = {seeds.derive(seed, *path) for seed in (0, 1, 2**32, 2**40, 2**40 + 1) for path in paths}
    assert len(found) == 5 * len(paths)


def test_derived_seeds_fit_where_libraries_take_31_bits():
    assert all(0 <= seeds.derive(seed, "episode", seed) < 2**31 for seed in range(1000))


def test_derived_seeds_are_spread_evenly():
    draws = np.array([seeds.derive(1, "episode", number) for number in range(4000)]) / 2**31
    assert abs(draws.mean() - 0.5) < 4 * (1 / 12) ** 0.5 / 4000**0.5  # four standard errors of a uniform mean
    assert len(np.unique(draws)) == 4000


def test_a_path_of_anything_but_integers_and_strings_is_refused():
    with pytest.raises(TypeError):
        seeds.derive(7, 0.5)


def test_generators_of_different_paths_are_independent_streams():
    first, again, other = seeds.generator(7, "memory"), seeds.generator(7, "memory"), seeds.generator(7, "policy")
    draws = first.random(1000)
    assert np.array_equal(draws, again.random(1000))
    assert abs(np.corrcoef(draws, other.random(1000))[0, 1]) < 0.1


def test_a_generator_goes_on_from_its_saved_state():
    rng = seeds.generator(7, "policy")
    rng.random(5, dtype=np.float32)  # leaves half a word buffered
    state = json.loads(json.dumps(seeds.generator_state(rng)))
    expected = rng.random(9, dtype=np.float32)
    other = seeds.generator(1, "something else")
    seeds.set_generator_state(other, state)
    assert np.array_equal(other.random(9, dtype=np.float32), expected)
