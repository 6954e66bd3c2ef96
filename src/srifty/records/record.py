"""Record: what every noun here has in common, so that a file of any of them can be trusted.

A record is frozen, refuses fields it does not know and numbers that are not finite, and checks itself
once, when it is made. Its file is JSON whose first field, `format`, names the record and its version.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

# Bounds far beyond anything real, within which sums and products of a record's numbers stay finite and exact.
Count = Annotated[int, Field(ge=1, le=2**60)]
Bytes = Annotated[int, Field(ge=0, le=2**60)]
Positive = Annotated[float, Field(gt=0, le=1e15)]


class Record(BaseModel):
    """A frozen value that stages hand to one another; lengths in seconds, bytes, US dollars, samples."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format_version: ClassVar[int] = 1

    @classmethod
    def format(cls) -> str:
        """Name and version as they stand in a file: "srifty/job_profile/1"."""
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        return f"srifty/{name}/{cls.format_version}"

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON schema of this record's file, `format` included."""
        schema = cls.model_json_schema()
        schema["properties"] = {"format": {"const": cls.format()}, **schema.get("properties", {})}
        schema["required"] = ["format", *schema.get("required", [])]
        return schema
