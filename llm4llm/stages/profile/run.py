"""Where the workload's time goes: the driver calls are replayed on the live instance."""

from pydantic import ValidationError

from llm4llm.errors import StageError
from llm4llm.kit import counted
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, StageName
from llm4llm.schema.profile import ProfileReport
from llm4llm.stages.hearing import Hearer, words
from llm4llm.stages.tools import Failed, Tools

REPEATS = 5  # passes; the host makes fewer when the time limit comes first
GRACE_S = 60.0


def run(job: Job, tools: Tools) -> ProfileReport:
    """Hotspots by share; StageError if the host did not get through a single pass."""
    limit_s = tools.seconds_left()
    hearer = Hearer(job, StageName.PROFILE, tools.progress, lambda said: (words(said, "note").get("note", "another pass"), {}))
    answer = tools.host.request("profile", {"repeats": REPEATS, "time_limit_s": limit_s}, limit_s + GRACE_S, hearer)
    if isinstance(answer, Failed):
        raise StageError(
            f"the workload could not be profiled ({answer.kind}: {answer.reason})", "run the script alone, or give a larger --budget"
        )
    try:
        report = ProfileReport.model_validate(answer.result)
    except ValidationError as error:
        raise StageError(f"the live host's profile can't be read ({error.errors()[0]['msg']})", "this is a fault of llm4llm") from error
    text = counted(len(report.hotspots), "hotspot")
    if report.end_to_end.samples_ms:
        text += f"; one pass over the workload takes {report.end_to_end.median_ms:.1f} ms"
    tools.progress(Event(job=job.id, kind="note", stage=StageName.PROFILE, text=text))
    return report
