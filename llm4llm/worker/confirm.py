"""The last word on a set of patches: the unmodified script in fresh processes, with and without them."""

from llm4llm.sandbox import Sandbox
from llm4llm.schema.acceptance import Patch, Trialled
from llm4llm.schema.reason import Reason
from llm4llm.store import Store
from llm4llm.worker.host import HostSetting


class Confirmation:
    """Implements the stages' FreshProcess."""

    def __init__(self, sandbox: Sandbox, setting: HostSetting, store: Store) -> None:
        self._sandbox = sandbox
        self._setting = setting
        self._store = store

    def __call__(self, patches: tuple[Patch, ...], time_limit_s: float) -> Trialled:
        names = tuple(patch.candidate for patch in patches)
        reason = Reason(code="not_confirmed", text="there is no launcher yet")
        return Trialled(patches=names, checks=(), sites={}, timing=None, decision="drop", reason=reason)
