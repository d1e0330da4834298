import random

from llm4llm.kit import FrozenClock, new_id


def test_ids_sort_by_time_and_name_their_kind() -> None:
    clock, rng = FrozenClock(), random.Random(0)
    ids = []
    for _ in range(50):
        ids.append(new_id("job", clock, rng))
        clock.sleep(0.001)
    assert ids == sorted(ids)
    assert len(set(ids)) == 50
    assert all(text.startswith("job_") and len(text) == 21 for text in ids)


def test_ids_of_one_moment_differ_and_are_reproducible() -> None:
    clock = FrozenClock()
    first, again = random.Random(7), random.Random(7)
    made = [new_id("x", clock, first) for _ in range(20)]
    assert len(set(made)) == 20
    assert made == [new_id("x", clock, again) for _ in range(20)]
