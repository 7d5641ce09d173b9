"""What the command line does with static models: compile, run, check and explain plans of stages."""
