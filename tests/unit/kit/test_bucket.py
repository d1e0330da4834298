import pytest

from llm4llm.kit import TokenBucket


def test_it_starts_full_and_fills_with_time() -> None:
    bucket = TokenBucket(per_second=4.0, capacity=2, at=10.0)
    assert bucket.take(10.0) == bucket.take(10.0) == 0.0
    assert bucket.take(10.0) == pytest.approx(0.25)
    assert bucket.take(10.25) == 0.0
    assert bucket.take(10.3) == pytest.approx(0.2)


def test_it_never_holds_more_than_its_capacity_and_time_never_goes_back() -> None:
    bucket = TokenBucket(per_second=1.0, capacity=2, at=0.0)
    assert [bucket.take(1000.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert bucket.take(999.0) == 1.0
