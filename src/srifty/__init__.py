"""Srifty: which machines for a PyTorch data-parallel training job, how sure that is, and then to run it.

The public face is the verbs, the records, and `read` and `write`. Nothing heavy is imported before its use.
"""

from __future__ import annotations

__version__ = "0.1.0"
