"""The judge as the stages see it: one verdict per call, whatever happens to the processes behind it."""

from pathlib import Path
from typing import Any

from llm4llm.assets import resolve_target
from llm4llm.errors import BadCandidate, BadTaskFolder, StageError
from llm4llm.sandbox import Sandbox
from llm4llm.schema.job import Job
from llm4llm.schema.task import Task, is_task_id
from llm4llm.schema.verdict import Failed, Verdict
from llm4llm.stages.tools import TASKS
from llm4llm.stages.verdict.judging import KeptJudge
from llm4llm.worker.scratch import own_folder

_SEED = 0
_HELD_OUT_SEED = 20_011  # any other number: inputs drawn from it were never shown to an agent
_TIMING_SHARE = 0.3  # of the time limit; the rest is for starting processes and for the gates
_GATES_SHARE = 0.4
_MAX_TIMING_S = 20.0
_MAX_GATES_S = 60.0
_MAX_HELD_OUT_TIMING_S = 8.0  # which of two candidates is faster was decided before; here only whether it still is


class JobJudge:
    """Implements the stages' Judge for one job."""

    def __init__(self, sandbox: Sandbox, job: Job, folder: Path) -> None:
        self._tasks = own_folder(folder) / TASKS
        self._judge = KeptJudge(sandbox, job.request.python)

    def __call__(self, task: Task, candidate_file: Path, *, time_limit_s: float, held_out: bool = False) -> Verdict:
        """The verdict; a judge that fails is the verdict `failed` with its reason, so that one bad task never ends a job."""
        if not is_task_id(task.id):
            return Failed(kind="bad_task", reason=f"{task.id[:100]!r} is no task's id")
        seed = _HELD_OUT_SEED if held_out else _SEED
        options = judge_options(task.target, time_limit_s, seed)
        if held_out:
            options["seconds"] = min(options["seconds"], _MAX_HELD_OUT_TIMING_S)
            self._judge.close()  # held-out inputs are judged in a fresh process
        try:
            return self._judge(self._tasks / task.id, candidate_file, options)  # wherever the live host said that it lies
        except (BadTaskFolder, BadCandidate, StageError) as error:
            return Failed(kind=error.code, reason=str(error))
        finally:
            if held_out:
                self._judge.close()  # and nothing may lie on the GPU while patches are timed in the model

    def close(self) -> None:
        """End what is still running."""
        self._judge.close()


def judge_options(target: str, time_limit_s: float, seed: int = _SEED) -> dict[str, Any]:
    """How a time limit in seconds is split, what kernels are compiled for, and from which seed fresh inputs are drawn."""
    return {
        "seed": seed,
        "seconds": min(_MAX_TIMING_S, _TIMING_SHARE * time_limit_s),
        "gate_seconds": min(_MAX_GATES_S, _GATES_SHARE * time_limit_s),
        "time_limit_s": time_limit_s,
        **_target_options(target),
    }


def _target_options(name: str) -> dict[str, Any]:
    """What kernels are compiled for, and the shared memory that they may use there."""
    if name.startswith("sm_"):
        return {"capabilities": [int(name.removeprefix("sm_"))]}  # a GPU without a datasheet: see assets.target_for
    target = resolve_target(name, None, None)
    if target.capability is None:
        return {}
    limit = {} if target.shared_bytes_per_block is None else {"shared_bytes": target.shared_bytes_per_block}
    return {"capabilities": [target.capability], **limit}
