"""Errors, told apart by what the caller can do about them.

    SriftyError
    ├── InvalidInput      mend the input: what was given, its unit, what is allowed      exit status 2
    ├── NotMeasured       measure more: the range, and the verb that extends it          exit status 3
    ├── NoFeasiblePlan    relax a limit: carries the nearest plan and the limit          exit status 3
    ├── NoCapacity        wait or re-plan: the offer that is sold out                    exit status 4
    ├── CloudRefused      mend the account: the provider's own words                     exit status 4
    └── WorkloadFailed    mend the training code: its own traceback                      exit status 5

Each message is one or two plain lines: what was wrong, the value with its unit, what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from srifty.records.job_profile import JobProfile
    from srifty.records.offer import Offer
    from srifty.records.plan import Plan


class SriftyError(Exception):
    """Anything that Srifty reports to its user; `exit_status` is what the command line ends with."""

    exit_status = 1


class InvalidInput(SriftyError):
    """The input cannot be used as it is; the message names the field, the value and what is allowed."""

    exit_status = 2


class NotMeasured(SriftyError):
    """The question lies outside what was measured; the message names the verb that extends the range."""

    exit_status = 3


class NoFeasiblePlan(SriftyError):
    """No cluster meets every limit.

    Attributes:
        nearest: the plan that breaks its limits by the smallest factor, or None where nothing can run at all
        broken_limit: the limit that `nearest` breaks most, as the user named it ("within", "budget"), or None
    """

    exit_status = 3

    def __init__(self, message: str, *, nearest: Plan | None = None, broken_limit: str | None = None) -> None:
        super().__init__(message)
        self.nearest = nearest
        self.broken_limit = broken_limit


class NoCapacity(SriftyError):
    """The provider has no machine of this offer at present.

    Attributes:
        offer: what was asked for
    """

    exit_status = 4

    def __init__(self, message: str, *, offer: Offer | None = None) -> None:
        super().__init__(message)
        self.offer = offer


class CloudRefused(SriftyError):
    """The provider refused: credentials, quota or permission; the message holds its own words."""

    exit_status = 4


class WorkloadFailed(SriftyError):
    """The user's training code raised.

    Attributes:
        workload_traceback: the traceback of the training code alone, without Srifty's frames
        partial: what was measured before it raised; None: nothing that can be used
    """

    exit_status = 5

    def __init__(
        self, message: str, *, workload_traceback: str = "", partial: JobProfile | None = None
    ) -> None:
        super().__init__(message)
        self.workload_traceback = workload_traceback
        self.partial = partial
