"""What a process that runs a job must still hold for anything it writes about that job to be stored."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from llm4llm.errors import DeviceLost, LeaseLost, NoLongerOurs
from llm4llm.store.rows import DeviceLeaseRow, JobRow


class Fence:
    """Asked at the begin of every write. A process that slept through its lease finds out here at the latest, and changes nothing.

    Whether the lease has expired does not matter as long as nobody else has taken it: the holder's name alone decides, and no name is
    used twice.
    """

    def __init__(self, job_id: str, holder: str) -> None:
        self.job_id = job_id
        self.holder = holder
        self.device: str | None = None  # on which something is timed right now
        self._shut: NoLongerOurs | None = None

    @property
    def shut(self) -> NoLongerOurs | None:
        """Why nothing more may be written; None while writing is allowed."""
        return self._shut

    def shut_for(self, why: NoLongerOurs) -> None:
        """Refuse every write from now on; the first reason stays. May be called by any thread."""
        if self._shut is None:
            self._shut = why

    def check(self, session: Session) -> None:
        """LeaseLost, DeviceLost, or why the fence was shut."""
        if self._shut is not None:
            raise self._shut
        # the row stays locked until the transaction ends: nobody can take the job in between
        held = select(JobRow.lease_holder).where(JobRow.id == self.job_id).with_for_update()
        if session.scalar(held) != self.holder:
            self.shut_for(LeaseLost(self.job_id))
        elif self.device is not None:
            holder = session.scalar(select(DeviceLeaseRow.holder).where(DeviceLeaseRow.device == self.device))
            if holder != self.holder:
                self.shut_for(DeviceLost(self.device))
        if self._shut is not None:
            raise self._shut
