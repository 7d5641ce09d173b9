"""Stages on a CPU: units as tasks with packed weights, values in an arena by lifetimes, threads that run them, and what
they take."""
