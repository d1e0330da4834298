"""What belongs to the end of a script, tracebacks without our frames, and time limits."""

import atexit
import concurrent.futures
import sys
import threading
import time
import traceback
from types import TracebackType

import pytest

from llm4llm.harness import exits, script, streams, timelimit, traces
from llm4llm.harness.timelimit import TimeLimit, TimeUp


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (None, "returned", 0),
        (SystemExit(), "exit", 0),
        (SystemExit(3), "exit", 3),
        (SystemExit(-1), "exit", 255),
        (SystemExit(True), "exit", 1),
        (SystemExit("no more"), "exit", 1),
        (ValueError("bad"), "raised", 1),
        (KeyboardInterrupt(), "raised", 130),
    ],
)
def test_ends(error: BaseException | None, kind: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    end = script.ended(error, TimeLimit(None))
    assert (end.kind, end.exit_code) == (kind, code)
    printed = capsys.readouterr().err
    assert ("no more" in printed) == (isinstance(error, SystemExit) and error.code == "no more")
    assert ("ValueError: bad" in printed) == isinstance(error, ValueError)
    assert end.error == ("ValueError: bad" if isinstance(error, ValueError) else end.error)


def test_an_excepthook_of_the_script_is_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: print("mine:", error))
    script.ended(ValueError("bad"), TimeLimit(None))
    assert capsys.readouterr().out == "mine: bad\n"


def test_exit_callbacks_of_the_user_run_in_reverse_order() -> None:
    order: list[str] = []
    original = atexit.register
    with exits.ExitCallbacks() as callbacks:
        atexit.register(order.append, "first")
        atexit.register(order.append, "second")
        dropped = atexit.register(lambda: order.append("dropped"))
        atexit.unregister(dropped)
        callbacks.run()
    assert order == ["second", "first"]
    assert atexit.register is original


def test_a_failing_exit_callback_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[int] = []
    with exits.ExitCallbacks() as callbacks:
        atexit.register(order.append, 1)
        atexit.register(lambda: 1 / 0)
        callbacks.run()
    assert order == [1]
    printed = capsys.readouterr().err
    assert "ZeroDivisionError" in printed
    assert traces._OWN not in printed


def test_threads_are_waited_for_and_executors_work_on() -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: (time.sleep(0.2), done.append(1)))
    thread.start()
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.submit(done.append, 2)
    exits.wait_for_threads()
    assert sorted(done) == [1, 2]
    with concurrent.futures.ThreadPoolExecutor(1) as later:
        assert later.submit(int, "3").result(5) == 3


def test_frames_of_ours_are_taken_out_of_the_middle() -> None:
    own = compile("def call(part): part()", traces._OWN + "/anything.py", "exec")
    namespace: dict[str, object] = {}
    exec(own, namespace)

    def inner() -> None:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise ValueError("effect") from cause

    with pytest.raises(ValueError) as caught:
        namespace["call"](lambda: namespace["call"](inner))  # type: ignore[operator]
    error = caught.value
    assert traces._OWN in "".join(traceback.format_exception(error))
    traces.strip(error)
    names = _names(error.__traceback__)
    assert "call" not in names
    assert names[-2:] == ["<lambda>", "inner"]


def test_nothing_left_is_no_traceback() -> None:
    assert traces.stripped(None) is None
    with pytest.raises(SyntaxError) as caught:
        exec(compile("compile('(', 'x', 'exec')", traces._OWN + "/x.py", "exec"))
    own_only = caught.value.__traceback__
    assert own_only is not None
    assert traces.stripped(own_only.tb_next) is None


def _names(trace: TracebackType | None) -> list[str]:
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return names


def test_time_is_up_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelimit, "GRACE_S", 0.1)
    limit = TimeLimit(0.1)
    limit.start()
    caught = 0
    try:
        while caught < 3:
            try:
                with limit:
                    time.sleep(10)
            except BaseException:  # noqa: BLE001, RUF100
                caught += 1
    finally:
        limit.stop()
    assert limit.fired
    time.sleep(0.3)  # and no more afterwards


def test_time_that_was_up_before_counts_at_once() -> None:
    limit = TimeLimit(None)
    limit.fired = True
    with pytest.raises(TimeUp):
        with limit:
            raise AssertionError("never reached")
    assert issubclass(TimeUp, KeyboardInterrupt)


def test_open_files_are_written_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("out") / "text"
    file = path.open("w")
    file.write("kept")
    assert path.read_text() == ""
    streams.flush_files()
    assert path.read_text() == "kept"
    file.close()
