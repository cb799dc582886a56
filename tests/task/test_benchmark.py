"""task=benchmark: the numbers can be worked out by hand, a killed run goes on, texts are judged."""

from __future__ import annotations
