"""The program, run in this process."""

from __future__ import annotations

import sys

import pytest

from srifty.cli.main import main


@pytest.fixture(name="run")
def _run(capsys, monkeypatch):
    """Run `srifty` with arguments: (exit status, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["srifty", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run
