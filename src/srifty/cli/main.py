"""The program `srifty`: its verbs, and how it ends when something is wrong.

A person gets one or two plain lines and an exit status that says what kind of trouble it was; a traceback only
with --debug.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

import srifty
from srifty.cli.offers import offers
from srifty.cli.plan import plan
from srifty.cli.predict import predict
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


for _verb in (offers, profile, predict, plan, schema):
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
    try:
        app(args=arguments, prog_name="srifty")
    except SriftyError as error:
        if debug:
            raise
        if isinstance(error, WorkloadFailed) and error.workload_traceback:
            print(error.workload_traceback.rstrip(), file=sys.stderr)
        print(f"srifty: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except (KeyboardInterrupt, _Interrupted):
        print("srifty: interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; what is left in the buffer has no place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if debug:
            raise
        print(f"srifty: this is a fault in Srifty: {type(error).__name__}: {error}", file=sys.stderr)
        print("srifty: please report it with what the same command prints with --debug", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Take --debug out wherever it stands, but not from a training command behind `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [argument for argument in arguments[:end] if argument != "--debug"]
    return ours + arguments[end:], len(ours) < end


if __name__ == "__main__":
    main()
