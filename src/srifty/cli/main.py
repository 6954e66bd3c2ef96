"""The program `srifty`: its verbs, and how it ends when something is wrong.

A person gets one or two plain lines and an exit status that says what kind of trouble it was; a traceback only
with --debug.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

import srifty
from srifty.cli.fit import fit
from srifty.cli.offers import offers
from srifty.cli.plan import plan
from srifty.cli.predict import predict
from srifty.cli.probe import probe
from srifty.cli.profile import profile
from srifty.cli.schema import schema
from srifty.errors import SriftyError, WorkloadFailed

app = typer.Typer(
    name="srifty",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which cloud machines for a PyTorch data-parallel training job: profile it, predict, plan.",
    epilog="Any command takes --debug, which shows the traceback of an error. "
    "Exit status: 0 done, 2 the input, 3 infeasible or not measured, 4 the outside world, 5 the training code.",
)


class _Interrupted(Exception):
    """Ctrl-C inside a verb; the library below would end the process without a word."""


def _interruptible(verb: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(verb)
    def run(*arguments: object, **options: object) -> None:
        try:
            verb(*arguments, **options)
        except KeyboardInterrupt:
            raise _Interrupted from None

    return run


for _verb in (offers, profile, probe, fit, predict, plan, schema):
    app.command()(_interruptible(_verb))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"srifty {srifty.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Which cloud machines for a PyTorch data-parallel training job: profile it, predict, plan."""


def main() -> NoReturn:
    """Run the command line and end the process."""
    arguments, debug = _without_debug(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_tidily)
    try:
        app(args=arguments, prog_name="srifty")
    except SystemExit as end:
        sys.exit(_flushed(end.code))
    except (KeyboardInterrupt, _Interrupted):
        _say("interrupted; nothing was written")
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; what is left in the buffer has no place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except Exception as error:
        if debug:
            traceback.print_exc()
        status = _tell(error)
        sys.exit(status)
    sys.exit(_flushed(0))


def _tell(error: Exception) -> int:
    """Say what went wrong in a plain line or two; the exit status that goes with it."""
    if isinstance(error, WorkloadFailed) and error.workload_traceback:
        print(error.workload_traceback.rstrip(), file=sys.stderr)
    if isinstance(error, SriftyError):
        _say(str(error))
        return error.exit_status
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO):
        _say(f"cannot write to standard output: {(error.strerror or '').lower()}")
        return 1
    _say(f"this is a fault in Srifty: {type(error).__name__}: {error}")
    _say("please report it with what the same command prints with --debug")
    return 1


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody listens
        print(f"srifty: {text}", file=sys.stderr, flush=True)


def _flushed(status: object) -> int:
    """The exit status, after what is still in the buffer of standard output has found its place."""
    code = status if isinstance(status, int) else int(status is not None)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _tell(error)
    return code


def _end_tidily(number: int, _frame: object) -> NoReturn:
    """On SIGTERM and SIGHUP, leave as after Ctrl-C: files and processes are tidied up on the way out."""
    _say(f"ended by {signal.Signals(number).name}; nothing was written")
    raise SystemExit(128 + number)


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Take --debug out wherever it stands, but not from a training command behind `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [argument for argument in arguments[:end] if argument != "--debug"]
    return ours + arguments[end:], len(ours) < end


if __name__ == "__main__":
    main()
