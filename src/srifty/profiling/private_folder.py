"""A private folder for one run: outside the user's own where that can be, and gone afterwards.

Who is killed at once leaves it behind. So each run first removes the folders whose owners are gone.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "srifty-"
_OWNER = "owner.json"


@contextmanager
def private_folder(outside: Path | None = None) -> Iterator[Path]:
    """A folder, gone afterwards with all that is in it.

    Args:
        outside: it does not lie in this one, if there is any other place for it
    """
    places = _places()
    for place in places:
        _remove_left_behind(place)
    apart = [place for place in places if outside is None or not place.is_relative_to(outside)]
    folder = _made_in([*apart, *places])
    try:
        (folder / _OWNER).write_text(json.dumps(_owner(os.getpid())), encoding="utf-8")
        yield folder
    finally:
        _remove(folder)


def _places() -> list[Path]:
    """Where temporary files may go, the most usual place first; memory last."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    named = [tempfile.gettempdir(), "/var/tmp", "/tmp", os.path.expanduser(cache), "/dev/shm"]  # noqa: S108
    found = (Path(place).resolve() for place in named if os.path.isdir(place))
    return list(dict.fromkeys(found))


def _made_in(places: list[Path]) -> Path:
    *first, last = places
    for place in first:
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=last))


def _remove_left_behind(place: Path) -> None:
    """Remove our own folders whose owner is gone; one without an owner's name may just be in the making."""
    for path in place.glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError, ValueError, KeyError):
            folder = path.parent
            is_ours = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
            if is_ours and _is_gone(json.loads(path.read_text(encoding="utf-8"))):
                _remove(folder)


def _remove(folder: Path) -> None:
    for place in folder.glob("work/*"):
        place.chmod(0o700)  # where overlays keep it without any rights
    shutil.rmtree(folder, ignore_errors=True)


def _owner(process: int) -> dict[str, object]:
    return {"process": process, "started": _started(process), "where": _where()}


def _is_gone(owner: dict[str, object]) -> bool:
    """Whether the process has ended; of another machine or container that cannot be told."""
    process = owner["process"]
    return owner["where"] == _where() and isinstance(process, int) and owner["started"] != _started(process)


def _started(process: int) -> str | None:
    """When it was started, which tells it from a later one of the same number; None: there is none."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # another user's
    try:
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
    except OSError:
        return "some time"  # not Linux


def _where() -> str:
    """The machine and, on Linux, the space of process numbers."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()
