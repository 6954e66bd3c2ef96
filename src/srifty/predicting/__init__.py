"""Predicting: learn how long steps and exchanges take, and simulate iterations and jobs from that."""
