"""Clouds: the outside world, one file a provider, and the table of what they offer."""
