"""How long the things take that people wait for, each beside a baseline from the same run."""
