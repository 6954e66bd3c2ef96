"""Run as a program of its own: become the training command, in a private view of its working folder.

Whatever the command writes there goes into another folder and leaves the user's as it was. That needs a mount
namespace, which not every kernel allows: then the command runs in the folder itself, and the status file says
so. Needs nothing but the standard library; it is started by path, apart from the package.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000
_RECURSIVE, _PRIVATE = 0x4000, 0x40000
_SET_DEATH_SIGNAL = 1
_NO_PROGRAM = 127


def main(spec_path: str) -> None:
    """Become the command that the file names.

    Args:
        spec_path: JSON with command, folder, parent (process id), status (a file to write), upper and work (folders
            on one file system, None: no private view)
    """
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    status = {"is_private": False, "why_not": "not asked for", "failed": None}
    folder = spec["folder"]
    if spec["upper"] is not None:
        try:
            cover(folder, spec["upper"], spec["work"])
            status |= {"is_private": True, "why_not": None}
        except OSError as error:
            status["why_not"] = str(error)
    _end_with(spec["parent"])
    os.chdir(folder)
    Path(spec["status"]).write_text(json.dumps(status), encoding="utf-8")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores, and the command would inherit
    try:
        os.execvp(spec["command"][0], spec["command"])  # noqa: S606 - an argument list; no shell is wanted
    except OSError as error:
        status["failed"] = str(error)
        Path(spec["status"]).write_text(json.dumps(status), encoding="utf-8")
        sys.exit(_NO_PROGRAM)


def cover(folder: str, upper: str, work: str) -> None:
    """Mount an overlay over the folder that this process and its children alone see.

    Raises:
        OSError: the kernel, or the file system, does not allow it
    """
    if not sys.platform.startswith("linux"):
        raise OSError("only Linux has overlays")
    if any(point == folder or point.startswith(folder.rstrip("/") + "/") for point in _mount_points()):
        raise OSError("another file system is mounted in the folder")
    library = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if user != 0 or library.unshare(_NEW_NAMESPACE) != 0:
        _checked(library.unshare(_NEW_NAMESPACE | _NEW_USER), "no namespace of one's own")
        # Inside, the user is who they are outside; the rights of the namespace end with the next program.
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _checked(library.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mounts cannot be made private")
    os.chdir(folder)
    # Relative, so that no sign in the folder's name can be taken for one of the options'.
    options = f"lowerdir=.,upperdir={upper},workdir={work}"
    # With redirects a folder of the user's can be renamed; not every kernel and file system has them.
    for more in (",redirect_dir=on", "", ",userxattr"):
        done = library.mount(b"overlay", os.fsencode(folder), b"overlay", 0, (options + more).encode())
        if done == 0:
            return
    _checked(-1, "no overlay")


def _mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [line.split()[4].replace("\\040", " ") for line in lines]


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _end_with(parent: int) -> None:
    """Be killed when the process that started this one dies, however it dies."""
    if sys.platform.startswith("linux"):
        library: Any = ctypes.CDLL(None, use_errno=True)
        library.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)  # it has died already


if __name__ == "__main__":
    main(sys.argv[1])
