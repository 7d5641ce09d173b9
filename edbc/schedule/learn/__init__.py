"""What compiling learns and looks up: Q-learning, beam search, yardsticks; never imported by what runs a mini-batch.

In: Graphs of sample mini-batches. Out: a Policy, and what is proven about the best possible schedule.
Must not know torch, cells or plans.
"""
