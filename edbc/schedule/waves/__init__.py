"""Waves: schedules for devices whose steps hold batches of several types, fewest steps first.

In: the Graph of a mini-batch and a plan's table of waves. Out: its Schedule. Must not know torch, cells or plans.
"""
