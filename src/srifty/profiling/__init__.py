"""Profiling: measure a job on one GPU (or on the CPU). The only room with torch."""
