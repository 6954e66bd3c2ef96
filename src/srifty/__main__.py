"""`python -m srifty` is `srifty`."""

from srifty.cli.main import main

main()
