"""Predicted against measured: how far Srifty's figures are from what others measured on real machines."""
