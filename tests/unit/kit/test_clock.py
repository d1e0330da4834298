from datetime import UTC, datetime, timedelta, timezone

from llm4llm.kit import FrozenClock, SystemClock, iso


def test_a_frozen_clock_moves_when_somebody_sleeps() -> None:
    clock = FrozenClock(datetime(2025, 3, 1, tzinfo=UTC))
    clock.sleep(90)
    assert clock.monotonic() == 90
    assert clock.now() == datetime(2025, 3, 1, 0, 1, 30, tzinfo=UTC)


def test_the_system_clock_knows_its_zone() -> None:
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()


def test_iso_texts_sort_like_time() -> None:
    moments = [datetime(2025, 1, 1, 12, 0, 0, microsecond, tzinfo=UTC) for microsecond in (0, 1, 500_000)]
    assert sorted(map(iso, moments)) == [iso(moment) for moment in moments]
    assert iso(datetime(2025, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))) == "2025-01-01T12:00:00.000000+00:00"
