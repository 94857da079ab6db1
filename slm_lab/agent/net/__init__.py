"""Nets built from the spec, the optimizers and learning-rate schedules that train them."""
