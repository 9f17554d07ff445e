"""Where the names of penstock's actors are."""

from __future__ import annotations

NAMESPACE = "penstock"  # of Ray's
