"""What people do with models and plans: compile, check, bench, train, explain; the command line.

In: model files, plans, instances. Out: plans, reports, files, exit codes. No other room imports this one.
"""
