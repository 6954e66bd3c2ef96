"""Benchmarks: predicted against measured, and speed; each prints its tables and can be rerun."""
