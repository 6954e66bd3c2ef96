"""Predicted against measured on real DDP runs in shaped networks of this machine."""
