"""What happens between the last line of a script and the end of its process, done while the process goes on.

The interpreter waits for threads, runs exit callbacks and lets go of children. Here callbacks that the user's own code registered run at
that point; those of libraries (torch among them) stay for the real end, because the models are still to be used.
"""

import atexit
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from llm4llm.harness import traces

_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class ExitCallbacks:
    """Collects what the user's code registers with atexit while it is entered."""

    def __init__(self) -> None:
        self._registered: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._originals = (atexit.register, atexit.unregister)

    def __enter__(self) -> "ExitCallbacks":
        register, unregister = self._originals

        def registering(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
            filename = sys._getframe(1).f_code.co_filename
            if filename.startswith(("<frozen", *_LIBRARIES)) or traces.is_own(filename):
                return register(func, *args, **kwargs)
            self._registered.append((func, args, kwargs))
            return func

        def unregistering(func: Callable[..., Any], /) -> None:
            self._registered[:] = [item for item in self._registered if item[0] != func]
            unregister(func)

        atexit.register, atexit.unregister = registering, unregistering
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        atexit.register, atexit.unregister = self._originals

    def run(self) -> None:
        """Run them, last registered first; an exception is printed, as the interpreter does, and the next one runs."""
        while self._registered:
            func, args, kwargs = self._registered.pop()
            try:
                func(*args, **kwargs)
            except Exception as error:
                print(f"Exception ignored in atexit callback: {func!r}", file=sys.stderr)  # noqa: T201
                traceback.print_exception(traces.strip(error))
            except SystemExit:
                continue


def wait_for_threads() -> None:
    """Wait until all threads that are no daemons have ended; executors that nobody shut down are told to end first."""
    # Executors register their end with threading, not with atexit; afterwards they would refuse work for good.
    for callback in reversed(getattr(threading, "_threading_atexits", [])):
        callback()
    for name, flag in (("concurrent.futures.thread", "_shutdown"), ("concurrent.futures.process", "_global_shutdown")):
        if hasattr(sys.modules.get(name), flag):
            setattr(sys.modules[name], flag, False)
    while waited := [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.current_thread()]:
        for thread in waited:
            thread.join()


def end_children() -> None:
    """Processes made with multiprocessing: daemons and pools are ended, others waited for."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._exit_function()
        util._exiting = False
