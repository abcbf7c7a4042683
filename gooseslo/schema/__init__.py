"""Typed configuration: dataclasses, Hydra composition, quoting of text and cross-group checks. No torch."""
