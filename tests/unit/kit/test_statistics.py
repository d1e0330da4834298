import numpy as np
import pytest

from llm4llm.kit.statistics import BadSamples, EmptySamples, UnequalSamples, bootstrap_ratio


def test_constant_ratio_has_a_point_interval() -> None:
    median, (low, high) = bootstrap_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert median == low == high == 2.0


def test_shared_drift_cancels_because_pairs_stay_together() -> None:
    drift = np.linspace(1.0, 3.0, 20)
    median, (low, high) = bootstrap_ratio(list(1.3 * drift), list(drift))
    assert median == pytest.approx(1.3)
    assert low == pytest.approx(1.3)
    assert high == pytest.approx(1.3)


def test_interval_covers_the_true_median_about_95_times_in_100() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for trial in range(200):
        base = np.exp(rng.normal(0.0, 0.05, 15))
        _, (low, high) = bootstrap_ratio(list(1.1 * base), list(np.ones(15)), rng_seed=trial, resamples=500)
        covered += low <= 1.1 <= high
    assert 175 <= covered <= 200


def test_same_seed_same_interval() -> None:
    rng = np.random.default_rng(1)
    base, patched = list(rng.uniform(1, 2, 9)), list(rng.uniform(1, 2, 9))
    assert bootstrap_ratio(base, patched) == bootstrap_ratio(base, patched)
    assert bootstrap_ratio(base, patched, rng_seed=1)[0] == bootstrap_ratio(base, patched)[0]


def test_no_gain_straddles_one() -> None:
    rng = np.random.default_rng(3)
    _, (low, high) = bootstrap_ratio(list(rng.normal(10, 0.5, 30)), list(rng.normal(10, 0.5, 30)))
    assert low < 1.0 < high


def test_one_pair() -> None:
    assert bootstrap_ratio([3.0], [2.0]) == (1.5, (1.5, 1.5))


@pytest.mark.parametrize(
    ("baseline", "patched", "error"),
    [
        ([], [], EmptySamples),
        ([1.0], [], UnequalSamples),
        ([1.0, 2.0], [1.0], UnequalSamples),
        ([1.0], [0.0], BadSamples),
        ([float("nan")], [1.0], BadSamples),
        ([-1.0], [1.0], BadSamples),
        (["x"], [1.0], BadSamples),
        ([[1.0]], [{}], BadSamples),
        ([1.0] * 1_000_000, [1.0] * 1_000_000, BadSamples),
    ],
)
def test_unusable_samples_are_typed_errors(baseline: list[float], patched: list[float], error: type[Exception]) -> None:
    with pytest.raises(error):
        bootstrap_ratio(baseline, patched)
